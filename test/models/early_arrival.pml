/* Arrivals that are made early, and taken back.
 *
 * N ranks have operations of one process set, which each submits in an order of its own. A rank that has no
 * other one under way fills its slot and arrives before it announces. What all have announced is ordered: one
 * by one, or two in one bucket. One operation may be rejected instead, one may be of a kind that is never
 * prepared (exchange.cc), and one may arrive twice (direct.cc, staged.cc).
 *
 * Properties:
 *   not under a reader   a rank writes its slot only when nobody who has seen it arrive, with what lies there,
 *                        may still read it: an assertion in Fill.
 *   the right bytes      what a rank reduces is every member's part of this very bucket, and the digests say so:
 *                        assertions in Combine and Arrive.
 *   nothing lost         every operation ends on every rank: a state in which nobody can go on is an invalid end
 *                        state for spin.
 *
 * Names: ops/shm/shm_group.h has ArriveEarly, TakeBackArrival, Arrive, AllArrived and CheckDigests; small.cc has
 * Prepare, Fill, Start and Combine; lane.cc of controller/lanes has Prepare, Ended and Advance; engine.cc has
 * DrainSubmissions, Begin, Announce, ReadPlan and AdvanceLanes. The coordinator is every rank's: all read one log
 * (host_log.pml) and work out the same plan. With three ranks the parts of a turn are a little coarser.
 *
 * Memory: x86. Where a break takes the fence away from an arrival's store, it goes to a buffer (`late`).
 *
 * Breaks, with the number of ranks and what spin must report:
 *   BREAK_SLOT_REWRITTEN          2 assertion    Start fills a slot that was prepared once more
 *   BREAK_ONE_SLOT                2 assertion    slots do not alternate
 *   BREAK_NOT_TAKEN_BACK          2 assertion    Lane::Prepare leaves an early arrival when another one comes
 *   BREAK_TAKEN_BACK_LATE         2 assertion    it takes it back behind the announcement
 *   BREAK_NEVER_REMEMBERED        2 assertion    TakeBackArrival does not forget what will never come
 *   BREAK_REJECTED_STAYS          2 assertion    Lane::Ended leaves the arrival of an operation that was rejected     -DMISMATCH=0
 *   BREAK_EARLY_AMONG_OTHERS      2 assertion    Lane::Prepare prepares though another one is under way
 *   BREAK_ARRIVAL_NOT_RUNG        2 end state    Arrive wakes nobody
 *   BREAK_NO_ARRIVE_FENCE         2 end state    no fence between Arrive's store and its look at the flags
 */
#ifndef N
#define N 2
#endif
#if N == 2
#define OPS 3
#else
#define OPS 2
#endif
#define NONE 255
#define FUSED 10           /* a bucket of operations 0 and 1; else a bucket's name is its operation's */
#define REJECTED 20        /* + operation, in the plan */

/* Area, by member and parity: what lies in the slot, the digest, and who still reads the slot. */
#define AT(member, parity) ((member) * 2 + (parity))
byte arrivals[N];
byte digest[N * 2] = NONE;
byte slot[N * 2] = NONE;
byte readers[N * 2];

/* The log and the plan. */
byte announced[OPS];       /* by how many */
byte plan[OPS];
byte planned;
byte mismatch = NONE;      /* the operation that is rejected */
byte plain = NONE;         /* the one that is never prepared */
byte twice = NONE;         /* the one that arrives twice */

bit asleep[N], bell[N];
byte over;

#ifdef BREAK_NO_ARRIVE_FENCE
byte late[N];              /* an arrival that has not reached memory */
inline Fence(who) {
  if
  :: late[who] != 0 -> arrivals[who] = late[who]; late[who] = 0
  :: else
  fi
}
active proctype Memory() {
end:
  do
  :: d_step { late[0] != 0 -> Fence(0) }
  :: d_step { late[1] != 0 -> Fence(1) }
#if N > 2
  :: d_step { late[2] != 0 -> Fence(2) }
#endif
  od
}
#define ARRIVALS_OF(i) ((i) == me && late[me] != 0 -> late[me] : arrivals[i])
#else
#define Fence(who) skip
#define ARRIVALS_OF(i) arrivals[i]
#endif

/* Neighbours::Wake of all but one. */
inline WakeAllBut(who, i) {
  d_step {
    for (i : 0 .. N - 1) {
      if
      :: i != who && asleep[i] -> bell[i] = 1
      :: else
      fi
    }
    i = 0
  }
}

#ifdef BREAK_ONE_SLOT
#define PARITY 0
#define PARITY_OF_LAST 0
#else
#define PARITY (mine & 1)  /* parity(), of the next arrival */
#define PARITY_OF_LAST ((mine - 1) & 1)
#endif

/* SmallAlgorithm::Fill. */
inline Fill(what) {
  d_step {
    assert(readers[AT(me, PARITY)] == 0);
    slot[AT(me, PARITY)] = what
  }
}

/* ShmGroup::TakeBackArrival. */
inline TakeBack(for_good) {
  d_step {
    Fence(me);
#ifndef BREAK_NEVER_REMEMBERED
    if
    :: for_good -> prepared_for = 0
    :: else
    fi;
#endif
    if
    :: early -> early = 0; arrivals[me] = mine
    :: else
    fi
  }
}

/* Lane::Prepare, with SmallAlgorithm::Prepare and ShmGroup::ArriveEarly. */
inline Prepare(op) {
  if
  :: prepared == op
  :: else ->
#if !defined(BREAK_NOT_TAKEN_BACK) && !defined(BREAK_TAKEN_BACK_LATE)
     if
     :: prepared != NONE -> TakeBack(0)
     :: else
     fi;
#endif
     if
#ifdef BREAK_EARLY_AMONG_OTHERS
     :: front == NONE && op != plain && prepared == NONE ->
#else
     :: live == 1 && front == NONE && op != plain ->
#endif
        Fill(op);
        d_step {
          Fence(me);
          prepared_for = mine + 1;
          digest[AT(me, PARITY)] = op;
          arrivals[me] = mine + 1;
          early = 1;
          prepared = op
        }
     :: else
     fi
  fi
}

/* ShmGroup::Arrive. */
inline Arrive(what, i) {
  arrived = 0;
  if
  :: early ->
     assert(digest[AT(me, PARITY)] == what);
     early = 0;
     mine++
  :: else ->
     d_step {
       Fence(me);
       digest[AT(me, PARITY)] = what;
       mine++;
#ifdef BREAK_NO_ARRIVE_FENCE
       late[me] = mine
#else
       arrivals[me] = mine
#endif
     };
#ifndef BREAK_ARRIVAL_NOT_RUNG
     WakeAllBut(me, i)
#endif
  fi
}

/* Lane::Ended of an operation that is rejected. */
inline EndRejected(op) {
  live--;
  if
  :: prepared == op ->
#ifndef BREAK_REJECTED_STAYS
     TakeBack(1);
#endif
     prepared = NONE
  :: else
  fi
}

#define HAS_SUBMITTED(op) ((submitted >> (op)) & 1)
#if N == 2
#define MAY_SUBMIT(op) ((op) < OPS && !HAS_SUBMITTED(op))
#else /* rank 0's order gives the operations their names */
#define MAY_SUBMIT(op) \
  ((op) < OPS && !HAS_SUBMITTED(op) && (me != 0 || (op) == 0 || HAS_SUBMITTED(0)))
#endif
#define ANNOUNCES (to_announce != NONE)

/* SmallAlgorithm::Start and Advance, with what Lane::Advance does before. */
inline StartFront(i) {
  if
  :: prepared != NONE && front != prepared -> TakeBack(1)
  :: else
  fi;
  prepared = NONE;
  if
#ifndef BREAK_SLOT_REWRITTEN
  :: prepared_for == mine + 1
#endif
  :: else -> Fill(front)
  fi;
  Arrive(front, i);
  started = 1
}
/* AllArrived goes on to the next member; from then on its slot may be read. */
inline NextArrived() {
  d_step {
    if
    :: started == 1 -> readers[AT(arrived, PARITY_OF_LAST)]++
    :: else
    fi;
    arrived++
  }
}
inline Combine(i) {
  for (i : 0 .. N - 1) {
    d_step {
      assert(digest[AT(i, PARITY_OF_LAST)] == front);
      assert(slot[AT(i, PARITY_OF_LAST)] == front);
      readers[AT(i, PARITY_OF_LAST)]--
    }
  }
  i = 0
}

#define ALL_HERE (arrived == N)
#define NEXT_HERE (started != 0 && arrived < N && ARRIVALS_OF(arrived) >= mine)

proctype Rank(byte me) {
  byte i, submitted, live, read;
  byte queue = NONE;       /* what is submitted and waits for its turn to be announced, behind */
  byte to_announce = NONE; /* this one, which is the next */
  byte front = NONE, behind = NONE, behind_that = NONE; /* the lane's buckets */
  byte started;            /* of the front one: 1 in its first arrival, 2 in its second */
  byte mine, prepared_for, arrived;
  byte prepared = NONE;
  bit early;
  do
  /* DrainSubmissions, Begin */
  :: atomic { queue == NONE && submitted != (1 << OPS) - 1 ->
       if
       :: MAY_SUBMIT(0) -> i = 0
       :: MAY_SUBMIT(1) -> i = 1
       :: MAY_SUBMIT(2) -> i = 2
       fi;
       submitted = submitted | (1 << i);
       live++;
       if
       :: to_announce == NONE -> to_announce = i
       :: else -> queue = i
       fi;
       i = 0 }
  /* Announce; there may be no room in the log */
  :: ANNOUNCES ->
     atomic { Prepare(to_announce) };
     if
#if N == 2
     :: true
#endif
     :: atomic { announced[to_announce]++;
#ifndef BREAK_TAKEN_BACK_LATE
          to_announce = queue;
          queue = NONE
#endif
        }
#ifdef BREAK_TAKEN_BACK_LATE
        if
        :: prepared != NONE && prepared != to_announce -> TakeBack(0)
        :: else
        fi;
        to_announce = queue;
        queue = NONE
#endif
     fi
  /* ReadPlan, OnLaunch */
  :: atomic { read < planned ->
       i = plan[read];
       read++;
       if
       :: i >= REJECTED -> i = i - REJECTED; EndRejected(i)
       :: i < REJECTED && front == NONE ->
          front = i;
#if N > 2 /* AdvanceLanes in the same turn */
          i = 0;
          StartFront(i)
#endif
       :: i < REJECTED && front != NONE && behind == NONE -> behind = i
       :: else -> behind_that = i
       fi;
       i = 0 }
  /* AdvanceLanes */
  :: atomic { front != NONE && !started -> StartFront(i) }
  :: atomic { NEXT_HERE -> NextArrived() }
  :: atomic { started != 0 && ALL_HERE ->
       if
       :: started == 1 -> Combine(i)
       :: else
       fi;
       if
       :: started == 1 && front == twice -> Arrive(front, i); started = 2
       :: else ->
          live = live - (front == FUSED -> 2 : 1);
          front = behind;
          behind = behind_that;
          behind_that = NONE;
          started = 0;
          arrived = 0
       fi }
  /* nothing to do: says so, looks once more, sleeps */
  :: submitted == (1 << OPS) - 1 && !ANNOUNCES && read == planned && live > 0 &&
     (front == NONE || (started && arrived < N && !NEXT_HERE)) ->
     d_step { Fence(me); asleep[me] = 1 };
     if
     :: read < planned || NEXT_HERE
     :: else -> bell[me]
     fi;
     d_step { bell[me] = 0; asleep[me] = 0 }
  :: submitted == (1 << OPS) - 1 && live == 0 && !ANNOUNCES -> break
  od;
  over++
}

/* Every rank's, in step: orders what all have announced. */
#define IS_COMPLETE(op) (announced[op] == N && !((ordered >> (op)) & 1))
active proctype Coordinator() {
  byte i, ordered;
  do
  :: atomic { IS_COMPLETE(0) || IS_COMPLETE(1) || IS_COMPLETE(OPS - 1) ->
       if
       :: IS_COMPLETE(0) && IS_COMPLETE(1) && mismatch > 1 && twice > 1 && plain > 1 ->
          plan[planned] = FUSED;
          ordered = ordered | 3
       :: IS_COMPLETE(0) -> i = 0
       :: IS_COMPLETE(1) -> i = 1
       :: IS_COMPLETE(OPS - 1) -> i = OPS - 1
       fi;
       if
       :: plan[planned] == FUSED
       :: else ->
          plan[planned] = (i == mismatch -> REJECTED + i : i);
          ordered = ordered | (1 << i)
       fi;
       planned++;
       i = 0 };
     WakeAllBut(N, i)
  :: over == N -> break
  od
}

init {
  byte i;
  atomic {
#ifdef MISMATCH
    mismatch = MISMATCH;
#else
    if
    :: true
    :: mismatch = 0
#if N == 2
    :: plain = 0
    :: twice = 0
#endif
    fi;
#endif
    for (i : 0 .. N - 1) {
      run Rank(i)
    }
  }
}
