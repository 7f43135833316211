/* The announcement log of a host: N ranks, each of which writes words and reads all of them.
 *
 * All do operations of everybody; then rank 0 does some of its own (of a process set of itself alone), while the
 * others are idle. Each is one word. A rank does one operation after the other and sleeps when there is nothing
 * to do. The ring is small, so that it is gone through more than once.
 *
 * Properties:
 *   order          every reader finds the word of each position, once and in order: an assertion in Read.
 *   no overrun     no word is overwritten before all readers have passed it: an assertion in Publish.
 *   all counted    there are never more marks of starving writers than their count says: an assertion in
 *                  WakeStarving.
 *   no lost wake   a writer without credit gets some again, and who waits for an operation learns of its end: a
 *                  state in which nobody can go on is an invalid end state for spin, unless all is done.
 *
 * Names: host_log.{h,cc} of controller/bus has HaveRoom, Retire, Publish, NoteFilledGap, LastLook, Read,
 * PublishCursor, OwesRoom, TakeStarving and SlowestReader; log_bus.cc has Send, Poll and BeforeSleep; bus.cc has
 * WakeBehindGap; in controller/runtime, baton.cc has TurnUntil, GiveBack and Background, engine.cc has
 * TurnOnce and CollectWork. One thread turns each rank's engine here, for whoever would: baton.pml is about several.
 *
 * A ring that comes late, and would cause a turn too many, is dropped. What others see no difference in is one
 * step: what a rank reads is its own business until it publishes its cursor or rings somebody.
 *
 * Memory: x86. A store is one step with the fence behind it, as nothing in between looks at what others write;
 * where a break takes the fence away, the store goes to a buffer of one entry (`late`) and reaches memory at any
 * later time, before the thread's next store, fence or locked instruction. A thread sees its own buffer.
 *
 * Breaks, with the number of ranks and what spin must report:
 *   BREAK_NO_CREDIT               2 assertion    a writer appends as it likes
 *   BREAK_NO_STARVING_FENCE       2 end state    no fence between HaveRoom's mark and its second look
 *   BREAK_MARKED_BEFORE_COUNTED   2 assertion    HaveRoom raises the count of the starving behind the mark
 *   BREAK_NO_CURSOR_FENCE         2 end state    no fence in PublishCursor
 *   BREAK_STARVING_NOT_RUNG       2 end state    who takes a starving writer's mark does not ring it
 *   BREAK_IDLE_NOT_RUNG           2 end state    a writer without credit does not ring one that is idle
 *   BREAK_LEAVES_OWING            2 end state    CollectWork does not ask OwesRoom
 *   BREAK_NO_LAST_LOOK            2 end state    no LastTurn behind the flag
 *   BREAK_NO_SLEEP_FENCE          2 end state    no fence between the flag and LastTurn
 *   BREAK_NO_GAP_MARK             2 end state    LastLook does not say that its rank sleeps behind a gap
 *   BREAK_GAP_NOT_TOLD            2 end state    who has filled a gap rings nobody
 *   BREAK_NO_GAP_FENCE            2 end state    no fence in NoteFilledGap
 */
#ifndef N
#define N 2
#endif
/* The ring: layout_.words, and what HostLog makes of it. A reader says how far it has read after CREDIT
 * words or more, as with four writers and more: then a writer may wait for what has been read and not said. */
#define WORDS 4
#define CREDIT (WORDS / N) /* credit_ */
#define QUARTER (CREDIT + 1)
#if N == 2
#define ALL 2              /* operations of everybody */
#define OWN 5              /* and then of rank 0's own */
#define TOGETHER
#else
#define ALL 1
#define OWN 3
#define TOGETHER atomic
#endif
#define NONE 255

#define AWAKE 0
#define WAITER 2
#define IDLE 4

/* Shared memory. */
byte head;
byte starving_count;
bit starving[N];
byte unread;               /* position + 1, so that 0 is none */
byte cursor[N];
bit lap_bit[WORDS];        /* of the ring's words */
byte writer_of[WORDS], position_of[WORDS]; /* and their writer; their position is for the assertions */
byte flag[N] = IDLE;
bit bell[N];

byte next[N];              /* the position that a rank reads next; here for Publish's assertion */
byte over;                 /* ranks that have done everything */

#define SLOT(position) ((position) % WORDS)
#define LAP(position) ((((position) / WORDS) & 1) ^ 1) /* memory begins as zeros: lap 0 has bit 1 */

inline StoreWord(who, position) {
  lap_bit[SLOT(position)] = LAP(position);
  writer_of[SLOT(position)] = who;
  position_of[SLOT(position)] = position
}

/* Store buffers of one entry, where a break needs them. */
#if defined(BREAK_NO_GAP_FENCE) || defined(BREAK_NO_CURSOR_FENCE) || \
    defined(BREAK_NO_STARVING_FENCE) || defined(BREAK_NO_SLEEP_FENCE)
#define L_NOTHING 0
#define L_WORD 1
#define L_FLAG 2
#define L_CURSOR 3
#define L_MARK 4
byte late[N], late_value[N];
inline Fence(who) {
  if
  :: late[who] == L_WORD -> StoreWord(who, late_value[who])
  :: late[who] == L_FLAG -> flag[who] = late_value[who]
  :: late[who] == L_CURSOR -> cursor[who] = late_value[who]
  :: late[who] == L_MARK -> starving[who] = 1
  :: else
  fi;
  late[who] = L_NOTHING;
  late_value[who] = 0
}
inline StoreLate(who, what, value) {
  Fence(who);
  late[who] = what;
  late_value[who] = value
}
#define MINE_LATE (late[me] == L_WORD && late_value[me] == next[me])
active proctype Memory() {
end:
  do
  :: d_step { late[0] != L_NOTHING -> Fence(0) }
  :: d_step { late[1] != L_NOTHING -> Fence(1) }
#if N > 2
  :: d_step { late[2] != L_NOTHING -> Fence(2) }
#endif
  od
}
#else
#define Fence(who) skip
#define MINE_LATE false
#endif

/* Neighbours::Wake and WakeIdle, behind a fence. */
inline Wake(who) {
  if
  :: flag[who] == WAITER -> bell[who] = 1
  :: else
  fi
}
inline WakeIdle(who) {
  if
  :: flag[who] != AWAKE -> bell[who] = 1
  :: else
  fi
}
inline WakeOthers(who) {
  for (who : 0 .. N - 1) {
    if
    :: who != me -> Wake(who)
    :: else
    fi
  }
  who = 0
}

inline Retire(i, slowest) {
  slowest = NONE;
  for (i : 0 .. N - 1) {
    slowest = (cursor[i] < slowest -> cursor[i] : slowest)
  }
  i = 0;
  do
  :: owned > 0 && owned_at[0] < slowest ->
     owned--;
#if N == 2
     owned_at[0] = owned_at[1];
     owned_at[1] = 0
#else
     owned_at[0] = 0
#endif
  :: else -> break
  od;
  slowest = 0
}
#ifdef BREAK_NO_CREDIT
#define FITS true
#else
#define FITS (owned < CREDIT)
#endif
/* HaveRoom marks its writer as starving. */
#ifdef BREAK_NO_STARVING_FENCE
#define MARK late[me] = L_MARK
#else
#define MARK starving[me] = 1
#endif
#ifdef BREAK_MARKED_BEFORE_COUNTED
#define MARK_FIRST MARK
#define MARK_THEN starving_count++
#else
#define MARK_FIRST starving_count++
#define MARK_THEN MARK
#endif
#if N == 2
#define MARKS (starving[0] + starving[1])
#else
#define MARKS (starving[0] + starving[1] + starving[2])
#endif
inline HaveRoom(room, i, slowest) {
  d_step {
    room = FITS;
    if
    :: room
    :: else -> Retire(i, slowest); room = FITS
    fi
  };
  if
  :: room
  :: else ->
     d_step {
       Fence(me);
       i = (marked && starving[me] -> 0 : 1);
       marked = 1;
       if
       :: i == 1 -> MARK_FIRST
       :: else
       fi
     };
     d_step {
       if
       :: i == 1 -> MARK_THEN
       :: else
       fi;
       i = 0
     };
     d_step { Retire(i, slowest); room = FITS }
  fi;
  if
  :: room && marked ->
     d_step {
       Fence(me);
       marked = 0;
       if
       :: starving[me] -> starving[me] = 0; starving_count--
       :: else
       fi
     }
  :: else
  fi
}
/* LogBus::Send without room: SlowestReader, the first if there are several, is rung even if it is idle. */
inline WakeSlowest(i, slowest) {
  d_step {
    for (i : 1 .. N - 1) {
      slowest = (cursor[i] < cursor[slowest] -> i : slowest)
    }
#ifdef BREAK_IDLE_NOT_RUNG
    Wake(slowest);
#else
    WakeIdle(slowest);
#endif
    slowest = 0;
    i = 0
  }
}

inline Publish(i, at) {
  d_step { Fence(me); at = head; head++ };
  /* Here a writer may lose the processor: a gap. */
  d_step {
    for (i : 0 .. N - 1) {
      assert(at < next[i] + WORDS)
    }
    i = 0;
#ifdef BREAK_NO_GAP_FENCE
    late[me] = L_WORD;
    late_value[me] = at;
#else
    Fence(me);
    StoreWord(me, at);
#endif
    unlooked = (at < unlooked -> at : unlooked);
    owned_at[owned] = at;
    owned++;
    at = 0
  }
}

#define HAS_NEXT (MINE_LATE || lap_bit[SLOT(next[me])] == LAP(next[me]))

/* In a d_step. */
inline PublishCursor() {
  if
  :: published != next[me] ->
     published = next[me];
     news = 1;
#ifdef BREAK_NO_CURSOR_FENCE
     StoreLate(me, L_CURSOR, published)
#else
     Fence(me);
     cursor[me] = published
#endif
  :: else
  fi
}
/* TakeStarving, and the rings. */
inline WakeStarving(i) {
  if
  :: news ->
     d_step {
       news = 0;
       assert(starving_count >= MARKS); /* who finds none counted looks at no mark */
       for (i : 0 .. N - 1) {
         if
         :: i != me && starving_count > 0 && starving[i] ->
            Fence(me);
            starving[i] = 0;
            starving_count--;
#ifndef BREAK_STARVING_NOT_RUNG
            Wake(i)
#endif
         :: else
         fi
       }
       i = 0
     }
  :: else
  fi
}

/* The coordinator's count of operations of everybody that are complete, from the words read so far. */
inline CountDone(i, result) {
  result = (seen[0] < ALL -> seen[0] : ALL);
  for (i : 1 .. N - 1) {
    result = (seen[i] < result -> seen[i] : result)
  }
  i = 0
}

/* HostLog::Read of a word that is there, with NoteFilledGap. What it does is seen by others only where it
 * publishes the cursor, so it is one step. */
inline Read(i, before) {
  d_step {
    if
    :: MINE_LATE -> i = me
    :: else ->
       i = writer_of[SLOT(next[me])];
       assert(position_of[SLOT(next[me])] == next[me])
    fi;
    before = done_of_all;
    seen[i]++;
    completes = (i == me);
    CountDone(i, done_of_all);
    completes = completes && done_of_all > before;
    before = 0;
    if
    :: next[me] > unlooked ->
#ifndef BREAK_NO_GAP_FENCE
       Fence(me);
#endif
       filled_gap = filled_gap || (unread > unlooked + 1);
       unlooked = NONE
    :: else
    fi;
    next[me]++;
    if
    :: next[me] - published >= QUARTER -> PublishCursor()
    :: else
    fi
  }
}

/* LogBus::Poll. */
inline Poll(moved, i, before) {
  do
  :: HAS_NEXT ->
     Read(i, before);
     moved = 1;
     if
     :: completes -> d_step { completes = 0; Fence(me); WakeOthers(i) }
     :: else
     fi
  :: d_step { !HAS_NEXT ->
       if
       :: published != next[me] && starving_count > 0 -> PublishCursor()
       :: else
       fi };
     break
  od;
  if /* WakeBehindGap */
  :: filled_gap ->
     d_step {
       filled_gap = 0;
#ifndef BREAK_GAP_NOT_TOLD
       Fence(me);
       WakeOthers(i)
#endif
     }
  :: else
  fi;
  WakeStarving(i)
}

/* TurnOnce. */
inline Turn(moved, i, t) {
  moved = 0;
  if /* Announce */
  :: sent < submitted ->
     TOGETHER { HaveRoom(moved, i, t) };
     if
     :: moved -> Publish(i, t); sent++
     :: else -> WakeSlowest(i, t)
     fi
  :: else
  fi;
  TOGETHER { Poll(moved, i, t) }
}

/* HostLog::LastLook. */
inline LastLook(moved) {
  TOGETHER {
  if
  :: HAS_NEXT -> moved = 1
  :: else ->
#ifndef BREAK_NO_GAP_MARK
     if
     :: owned > 0 && owned_at[owned - 1] >= next[me] ->
        d_step {
          Fence(me);
          unread = (unread < owned_at[owned - 1] + 1 -> owned_at[owned - 1] + 1 : unread)
        };
        moved = HAS_NEXT
     :: else
     fi
#endif
  fi
  }
}

#define MINE_DONE (done_of_all + (me == 0 && seen[0] > ALL -> seen[0] - ALL : 0))
#define MINE ((me == 0 -> OWN : 0) + ALL)
#define WAITS (MINE_DONE < submitted)

inline SetSleep(value) {
  d_step {
    Fence(me);
#ifdef BREAK_NO_SLEEP_FENCE
    late[me] = L_FLAG;
    late_value[me] = value
#else
    flag[me] = value
#endif
  }
}
inline SetAwake() {
  d_step { Fence(me); flag[me] = AWAKE; bell[me] = 0 } /* a ring that is late would cause a turn too many */
}
inline BeforeSleep(i) {
  TOGETHER {
    d_step { PublishCursor() };
    WakeStarving(i)
  }
}

proctype Rank(byte me) {
  byte i, t, sent, submitted, done_of_all, published, owned;
  #ifdef BREAK_NO_CREDIT
  byte owned_at[OWN + ALL], seen[N];
#else
  byte owned_at[CREDIT], seen[N];
#endif
  byte unlooked = NONE;
  bit moved, marked, news, filled_gap, completes;
  bit background = 1;      /* the background thread turns, else one that waits */
  bit last;                /* LastTurn: the flag says already that this rank sleeps */
  do
  :: Turn(moved, i, t);
     if
     :: last && !moved -> LastLook(moved)
     :: else
     fi;
     if
     :: last && (moved || (!background && !WAITS)) -> SetAwake(); last = 0
     :: last && !moved && WAITS -> /* TurnUntil */
        atomic { bell[me] -> SetAwake(); last = 0 }
     :: last && !moved && background && !WAITS -> goto parked
     :: !last && moved && (background || WAITS)
     :: !last && !moved && (background || WAITS) ->
        BeforeSleep(i);
#ifdef BREAK_NO_LAST_LOOK
        t = (WAITS -> WAITER : IDLE);
        SetSleep(t);
        t = 0;
        if
        :: background -> goto parked
        :: else -> atomic { bell[me] -> SetAwake() }
        fi
#else
        t = (WAITS -> WAITER : IDLE);
        SetSleep(t);
        t = 0;
        last = 1
#endif
     :: !last && !background && !WAITS -> /* GiveBack */
        TOGETHER {
        if
        :: submitted == MINE -> over++
        :: else
        fi;
        SetSleep(IDLE);
#ifdef BREAK_LEAVES_OWING
        moved = 0;
#else
        moved = (starving_count > 0 && (published != next[me] || HAS_NEXT)); /* OwesRoom */
#endif
        background = 1
        };
        if
        :: moved
        :: else ->
parked:
end:
           if
           :: atomic { bell[me] -> SetAwake(); last = 0 }
           :: atomic { submitted < MINE ->
                submitted++; background = 0; SetAwake(); last = 0 }
           fi
        fi;
        SetAwake()
     fi
  od
}

/* It ends only when all ranks have done everything. */
active proctype Program() {
  over == N
}

init {
  byte i;
  atomic {
    for (i : 0 .. N - 1) {
      run Rank(i)
    }
  }
}
