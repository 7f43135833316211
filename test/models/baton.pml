/* The baton: who turns the engine of one rank, and who wakes whom.
 *
 * N threads may have it: the background thread and N - 1 of the program, which call. With two threads the caller
 * calls twice. A neighbour stands for all other ranks: it orders what this rank has announced, one operation
 * after the other as it hears that the one before is complete, and arrives at the last one apart. Each step of
 * an operation is a step of some turn, so somebody must turn the engine as long as something is under way.
 *
 * Properties:
 *   one holder     at most one thread has the baton: an assertion in TryTake.
 *   no lost wake   whatever was submitted ends, and who waits for it returns: a state in which nobody can go
 *                  on is an invalid end state for spin, unless everything has ended.
 *
 * Names: baton.cc of controller/runtime has OnQueued, BackgroundLooksSoon, Await, TurnUntil, TryTake,
 * GiveBack, Background and WaitForBaton; engine.cc has TurnOnce, LastTurn, Complete, CollectWork and
 * SetSleep; sleepers.{h,cc} has Sleep, WakeFor and WakeOne; submissions.cc has Submit, MarkWaited and Take;
 * ops/host/neighbours.h has Wake, WakeIdle and WakeSelf.
 *
 * Time: a sleep ends by the clock only where the code means it to: a caller's time-out, the background thread's
 * patience, "looks soon". Such a sleep may end at any time, or, where an early end would change nothing, once it
 * would. Stall reports and heartbeats, which would cover up a lost ring, are left out. Nobody spins before a
 * sleep: that only adds turns. A ring that comes late, and would cause a turn too many, is dropped.
 *
 * Memory: x86. A store with a fence behind it is one step; where a break takes the fence away, the store goes to a
 * buffer of one entry (`late`) and reaches memory at any later time, before the thread's next locked instruction.
 *
 * Breaks, with the number of threads and what spin must report:
 *   BREAK_BATON_NOT_ATOMIC        2 assertion    TryTake looks, then stores
 *   BREAK_NO_LAST_LOOK            2 end state    no LastTurn behind the flag
 *   BREAK_NO_SLEEP_FENCE          2 end state    no fence between the flag and LastTurn
 *   BREAK_NO_WAKE_FENCE           2 end state    none between what a neighbour publishes and its look
 *   BREAK_NO_WAKE_SELF_FENCE      2 end state    none in WakeSelf
 *   BREAK_NO_DONE_FENCE           3 end state    none in WakeFor                            -DLAST_KIND=0
 *   BREAK_LEAVES_WITHOUT_LOOKING  2 end state    GiveBack does not ask CollectWork
 *   BREAK_LEAVES_DONE_UNSAID      2 end state    CollectWork forgets what must be said of completed batches
 *   BREAK_LEAVES_LANE_BUSY        2 end state    CollectWork forgets a busy lane
 *   BREAK_NO_SECOND_TRY           2 end state    WaitForBaton has no patience: it sleeps until it is rung
 *   BREAK_HOLDER_NOT_WOKEN        2 end state    Await does not wake the holder
 *   BREAK_HOLDER_SLEEPS_ON        3 end state    nor does WaitForBaton                      -DLAST_KIND=3
 *   BREAK_CALL_NOT_PASSED_ON      2 end state    who is called on its way out tells nobody
 *   BREAK_GONE_WAITER_TRUSTED     2 end state    the background thread leaves for a waiter that has gone
 */
#ifndef N
#define N 2
#endif
#define CALLERS (N - 1)
#if N == 2
#define OPS 2              /* operation i < CALLERS is caller i's first; the last one is caller 0's second */
#define SECOND 1
#define HAS_LANE 1         /* the last operation waits for an arrival in its lane, too */
#define TOGETHER
#else
#define OPS CALLERS
#define SECOND 0
#define HAS_LANE 0
#define TOGETHER atomic    /* a store and a look behind its fence: who comes between is only told twice */
#endif
#define NOBODY 255

/* Sleep, as in ops/host/segment.h. */
#define AWAKE 0
#define BACKGROUND 1
#define WAITER 2
#define IDLE 4

/* background_deadline_. */
#define NOT_ASLEEP 0
#define SOON 1
#define NEVER 2

/* What a caller does with its operation. */
#define EXECUTES 0         /* Runtime::Execute without a time-out */
#define TIMES_OUT 1        /* Runtime::Execute with one */
#define SUBMITS 2          /* Runtime::Submit, and never waits */
#define SUBMITS_SOON 3     /* the same with RUEDA_OPERATION_WAIT_SOON: says it will wait, and does not */
#define WAITS_LATER 4      /* Runtime::Submit, then Runtime::Wait */
#define WAITS_SOON 5       /* the same with RUEDA_OPERATION_WAIT_SOON */

/* Shared words. */
bit held;                  /* baton_ */
byte holders;              /* of the baton; for the assertion */
byte flag = IDLE;          /* RankPage::sleep */
bit bell_background, bell_waiter;
byte background_deadline = NOT_ASLEEP;
bit waits_soon;

/* Submissions. */
bit has_work;
bit queued[OPS];
byte in_queue;             /* how many of those */
bit all_wait_soon;
byte in_flight;

/* Sleepers. */
chan sleepers = [CALLERS] of { byte };
byte listed[CALLERS] = NOBODY;   /* the operation that a thread on the list waits for */
bit woken[CALLERS], called_on[CALLERS];

/* The engine, touched by the holder alone; `announced` and `told` are its words to the neighbour. */
bit announced[OPS];
byte told;                 /* Done: completed batches, as the others know */
byte orders_read, completed;
/* The neighbour's words: the plan, of one operation after the other, and its arrivals. */
byte orders;
bit arrivals;
byte order_of[OPS];        /* the operation of each order */
bit done[OPS];             /* Request::done */

/* Whether the others begin with caller 0's operation only when the last caller's has been ordered, and that
 * caller has returned. */
bit depends;
bit returned;


/* A store buffer of one entry, where a break needs one. ------------------------------------------ */
#define L_NOTHING 0
#define L_FLAG 1
#define L_WORK 2
#define L_ORDERS 3
#define L_ARRIVALS 4
#define L_DONE 5
#if defined(BREAK_NO_SLEEP_FENCE) || defined(BREAK_NO_WAKE_FENCE) || \
    defined(BREAK_NO_WAKE_SELF_FENCE) || defined(BREAK_NO_DONE_FENCE)
byte late, late_value, late_by;
inline Flush() {
  d_step {
    if
    :: late == L_FLAG -> flag = late_value
    :: late == L_WORK -> has_work = 1
    :: late == L_ORDERS -> orders = late_value
    :: late == L_ARRIVALS -> arrivals = late_value
    :: late == L_DONE -> done[late_value] = 1
    :: else -> skip
    fi;
    late = L_NOTHING
  }
}
inline Commit() { /* of this thread's */
  if
  :: late_by == me -> Flush()
  :: else
  fi
}
inline StoreLate(what, value) {
  d_step {
    Flush();
    late = what;
    late_value = value;
    late_by = me
  }
}
active proctype Memory() {
end:
  do
  :: atomic { late != L_NOTHING -> Flush() }
  od
}
#else
#define Commit() skip
#endif

/* Request::done as the thread sees it that has set it. */
#ifdef BREAK_NO_DONE_FENCE
#define IS_DONE(op) (done[op] || (late == L_DONE && late_value == op && late_by == me))
#else
#define IS_DONE(op) done[op]
#endif

/* SetSleep before a sleep, and the fence behind it. */
#ifdef BREAK_NO_SLEEP_FENCE
#define StoreFlagAndFence(value) StoreLate(L_FLAG, value)
#else
#define StoreFlagAndFence(value) flag = value
#endif

/* Neighbours::WakeIdle, behind a fence: looks at the flag, then rings. A bell that rings a little later wakes
 * as well: one step. */
inline Wake() {
  d_step {
    if
    :: flag == WAITER -> bell_waiter = 1
    :: flag == BACKGROUND || flag == IDLE -> bell_background = 1
    :: else
    fi
  }
}
/* Neighbours::Wake does not ring one that has nothing under way. */
inline WakeBusy() {
  d_step {
    if
    :: flag == WAITER -> bell_waiter = 1
    :: flag == BACKGROUND -> bell_background = 1
    :: else
    fi
  }
}

/* Sleepers::WakeOne: the first on the list is told to take the baton; if there is none, RingBackground. */
inline WakeOne(got, who, ring_else) {
  atomic {
    if
    :: nempty(sleepers) -> sleepers?<who>; called_on[who] = 1; woken[who] = 1; who = 0; got = 1
    :: empty(sleepers) -> bell_background = bell_background || ring_else
    fi
  }
}

inline TryTake(got, my_bell) {
  TOGETHER {
#ifdef BREAK_BATON_NOT_ATOMIC
    got = !held;
    if
    :: got -> d_step { held = 1; holders++; assert(holders == 1) }
    :: else
    fi;
#else
    d_step {
      Commit();
      got = !held;
      if
      :: got -> held = 1; holders++; assert(holders == 1)
      :: else
      fi
    };
#endif
    if
    :: got -> d_step { flag = AWAKE; my_bell = 0 }
    :: else
    fi
  }
}
inline FreeBaton() {
  d_step { holders--; Commit(); held = 0 }
}

/* SetSleep(kBackground), which becomes kIdle when nothing is under way. */
inline SetSleepBackground() {
  StoreFlagAndFence((in_flight == 0 -> IDLE : BACKGROUND))
}

/* TurnOnce. What others publish only comes, so a turn that looks at all of it in one step finds as much as
 * nothing when one that looks bit by bit does; what comes meanwhile the next turn finds. */
inline Turn(moved, i, t) {
  TOGETHER {
  d_step {
    moved = 0;
    if /* DrainSubmissions, Announce */
    :: has_work ->
       has_work = 0;
       moved = 1;
       for (i : 0 .. OPS - 1) {
         if
         :: queued[i] -> queued[i] = 0; announced[i] = 1
         :: else
         fi
       }
       in_queue = 0;
       i = 0
    :: else
    fi;
    if
    :: completed > told && in_flight > 0 -> told = completed; moved = 1
    :: else
    fi;
    if /* ReadPlan */
    :: orders > orders_read -> orders_read++; moved = 1
    :: else
    fi;
    if /* AdvanceLanes, OnBucketDone, Complete */
    :: orders_read > completed && (arrivals || orders < OPS || !HAS_LANE) ->
       in_flight--;
       moved = 1;
       i = order_of[completed];
       completed++;
#ifdef BREAK_NO_DONE_FENCE
       Flush();
       late = L_DONE;
       late_value = i;
       late_by = me
#else
       done[i] = 1
#endif
    :: else -> i = NOBODY
    fi
  };
  if
  :: i != NOBODY ->
     d_step { /* Sleepers::WakeFor */
       for (t : 0 .. CALLERS - 1) {
         if
         :: listed[t] == i -> woken[t] = 1
         :: else
         fi
       }
       t = 0
     }
  :: else
  fi;
  i = 0
  }
}
/* LastTurn: TurnOnce; the bus's last look at the log is in it. */
inline LastTurn(moved, i, t) {
  Turn(moved, i, t)
}

/* CollectWork. */
#ifdef BREAK_LEAVES_DONE_UNSAID
#define OWES_DONE false
#else
#define OWES_DONE (in_flight > 0 && completed > told)
#endif
#ifdef BREAK_LEAVES_LANE_BUSY
#define BUSY_LANE false
#else
#define BUSY_LANE (orders_read > completed)
#endif
#ifdef BREAK_LEAVES_WITHOUT_LOOKING
#define LEAVES_WORK false
#else
#define LEAVES_WORK \
  (OWES_DONE || BUSY_LANE || has_work || (in_flight > 0 && orders > orders_read))
#endif

inline GiveBack(work, got, who) {
  TOGETHER {
    SetSleepBackground();
    work = LEAVES_WORK
  };
  FreeBaton();
  atomic { WakeOne(got, who, work); work = 0; got = 0 }
}

/* Submissions::Submit, under its mutex. The fence is WakeSelf's, behind it. */
#define SOON_KIND (kind == SUBMITS_SOON || kind == WAITS_SOON)
#if defined(BREAK_NO_WAKE_SELF_FENCE)
#define StoreWork() StoreLate(L_WORK, 1)
#else
#define StoreWork() has_work = 1
#endif
inline Submit(op, kind, first) {
  atomic {
    first = (in_queue == 0) || (all_wait_soon && !SOON_KIND);
    all_wait_soon = SOON_KIND && (in_queue == 0 || all_wait_soon);
    queued[op] = 1;
    in_queue++;
    in_flight++;
    StoreWork()
  }
}

#define MAY_BE_LATE (kind == TIMES_OUT)

/* TurnUntil(done[op], deadline), the baton in hand: nobody else sets `done` meanwhile. */
inline TurnUntil(op) {
  do
  :: IS_DONE(op) -> break
  :: else ->
     Turn(moved, i, t);
     if
     :: MAY_BE_LATE -> is_late = 1; break
     :: moved
     :: !moved ->
        StoreFlagAndFence(WAITER);
#ifndef BREAK_NO_LAST_LOOK
        LastTurn(moved, i, t);
#endif
        if
        :: !moved && !IS_DONE(op) -> /* WaitPoint::Sleep */
           atomic {
             if
             :: bell_waiter
             :: MAY_BE_LATE -> is_late = 1
             fi;
             bell_waiter = 0;
             flag = AWAKE
           }
        :: else -> d_step { Commit(); flag = AWAKE; bell_waiter = 0 }
        fi
     fi
  od;
  moved = 0
}

/* Await. */
inline Await(op) {
  called = 0;
  do
  :: done[op] || is_late -> break
  :: TOGETHER { else -> TryTake(got, bell_waiter) };
     if
     :: got ->
        got = 0;
        called = 0;
        TurnUntil(op);
        GiveBack(moved, got, i)
     :: else ->
        TOGETHER {
#ifndef BREAK_HOLDER_NOT_WOKEN
          Wake(); /* WakeSelf */
#endif
          atomic { Commit(); sleepers!me; listed[me] = op } /* Sleepers::Sleep: on the list, then a look */
        };
        if
        :: done[op] || !held
        :: else ->
           if /* FutexWait */
           :: woken[me]
           :: MAY_BE_LATE -> is_late = 1
           fi
        fi;
        atomic {
          sleepers??eval(me);
          listed[me] = NOBODY;
          called = called_on[me];
          called_on[me] = 0;
          woken[me] = 0
        }
     fi
  od;
#ifndef BREAK_CALL_NOT_PASSED_ON
  if
  :: called ->
     WakeOne(got, i, 1);
     got = 0;
     called = 0
  :: else
  fi
#endif
}

proctype Caller(byte me, kind) {
  byte op, i, t;
  bit moved, got, called, is_late;
  op = me;
  do
  :: Submit(op, kind, got);
     if
     :: kind >= SUBMITS && got ->
        got = 0;
        if
        :: SOON_KIND -> /* BackgroundLooksSoon */
           waits_soon = 1;
           got = (background_deadline == SOON)
        :: else
        fi;
        if
        :: !got -> Wake() /* WakeSelf */
        :: else
        fi
     :: else
     fi;
     got = 0;
     if
     :: kind >= WAITS_LATER && !done[op] -> has_work = 1 /* MarkWaited */
     :: else
     fi;
     if
     :: kind != SUBMITS && kind != SUBMITS_SOON -> Await(op)
     :: else
     fi;
     is_late = 0;
     if
     :: op == 0 && SECOND -> op = OPS - 1
     :: else -> break
     fi
  od;
  if
  :: !SECOND && me == CALLERS - 1 -> returned = 1
  :: else
  fi
}

active proctype Background() {
  byte me = CALLERS;
  byte i, t;
  bit moved, got, to_a_waiter;
  do
  :: TryTake(got, bell_background);
     if
     :: !got -> /* WaitForBaton */
#ifdef BREAK_HOLDER_SLEEPS_ON
#define HOLDER_SHOULD_LOOK false
#else
#define HOLDER_SHOULD_LOOK (has_work && flag == WAITER && !bell_waiter)
        if
        :: has_work -> Wake() /* WakeSelf */
        :: else
        fi;
#endif
        /* SleepOnBell, for 1 to 16 ms: until the next try would find something else. */
        atomic {
#ifdef BREAK_NO_SECOND_TRY
          bell_background;
#else
          (bell_background || !held || HOLDER_SHOULD_LOOK);
#endif
          bell_background = 0
        }
     :: else ->
        got = 0;
        do
        :: Turn(moved, i, t);
           if
           :: moved
           :: else ->
              to_a_waiter = nempty(sleepers);
              if
              :: to_a_waiter -> break
              :: else ->
                 SetSleepBackground();
#ifdef BREAK_NO_LAST_LOOK
                 moved = 0;
#else
                 LastTurn(moved, i, t);
#endif
                 if
                 :: !moved -> break
                 :: else -> flag = AWAKE
                 fi
              fi
           fi
        od;
        moved = 0;
        SetSleepBackground();
        atomic {
          Commit();
          background_deadline = (waits_soon -> SOON : NEVER);
          waits_soon = 0;
          FreeBaton()
        };
        WakeOne(got, i, 0);
        if
#ifndef BREAK_GONE_WAITER_TRUSTED
        :: to_a_waiter && !got
#endif
        :: else ->
           got = 0;
           to_a_waiter = 0;
end:
           atomic { /* WaitPoint::Sleep */
             (bell_background || background_deadline == SOON);
             bell_background = 0;
             background_deadline = NOT_ASLEEP
           }
        fi;
        got = 0;
        to_a_waiter = 0
     fi
  od
}

/* All other ranks: they order what is announced, one operation after the other, as the lane becomes free,
 * and arrive at it. */
#ifdef BREAK_NO_WAKE_FENCE
#define PublishOrder(value) StoreLate(L_ORDERS, value)
#define PublishArrival(value) StoreLate(L_ARRIVALS, value)
#else
#define PublishOrder(value) orders = value
#define PublishArrival(value) arrivals = value
#endif
#define MAY_ORDER(i) \
  (announced[i] && !was_ordered[i] && (i || !depends || (was_ordered[CALLERS - 1] && returned)))
active proctype Neighbour() {
  byte me = CALLERS + 1;
  byte i, ordered;
  bit was_ordered[OPS];
  do
  :: atomic { ordered == told && (MAY_ORDER(0) || MAY_ORDER(1) || MAY_ORDER(OPS - 1)) ->
       if
       :: MAY_ORDER(0) -> i = 0
       :: MAY_ORDER(1) -> i = 1
       :: MAY_ORDER(OPS - 1) -> i = OPS - 1
       fi;
       was_ordered[i] = 1;
       order_of[ordered] = i;
       i = 0;
       ordered++ };
     TOGETHER {
       PublishOrder(ordered);
       WakeBusy()
     }
  :: ordered == OPS -> break
  od;
  if
  :: HAS_LANE -> TOGETHER { PublishArrival(1); WakeBusy() }
  :: else
  fi;
  /* It ends only when everything has. */
  byte all;
  for (all : 0 .. OPS - 1) {
    done[all]
  }
}

/* The last caller does anything, the others execute. */
#ifdef LAST_KIND
#define KIND_MIN LAST_KIND
#define KIND_MAX LAST_KIND
#elif N == 2
#define KIND_MIN EXECUTES
#define KIND_MAX WAITS_SOON
#else
#define KIND_MIN EXECUTES
#define KIND_MAX SUBMITS_SOON
#endif
init {
  byte i, kind;
  atomic {
    if
    :: depends = 0
    :: !SECOND -> depends = 1
    fi;
    for (i : 0 .. CALLERS - 1) {
      if
      :: i == CALLERS - 1 -> select(kind : KIND_MIN .. KIND_MAX)
      :: else
      fi;
      run Caller(i, kind);
      if
      :: kind == SUBMITS_SOON -> waits_soon = 1 /* an operation before this one has asked already */
      :: true
      fi
    }
  }
}
