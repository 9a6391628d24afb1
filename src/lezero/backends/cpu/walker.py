"""The native loop that walks a table, as LLVM IR.

A table is a list of *stages*; a stage is a list of *items* whose tasks may run at once, on any thread, except that a
*serial* stage is run from first to last by whichever thread claims it.  Every thread of the pool goes through the
stages in order: it claims tasks, runs them, adds how many it ran to the stage's `done` word and goes on when `done`
is complete.  Because nobody waits for threads, only for tasks, a thread that wakes up late, or not at all, delays
nothing: stages already finished are passed by without stopping.

Claiming.  With at most 64 tasks the stage's `claim` word is a bit mask and a thread looks for the next clear bit from
its own share on, so that a thread meets the same rows in consecutive stages (they are still in its cache) and takes
from others only what they have not begun.  With more tasks it is a counter, and threads take several small ones at a time.

Runs.  Thread 0 is the caller.  It clears the stages' words, publishes the run by a new *generation*, wakes sleepers
if the table has work for them, walks, and at the end closes the run and waits until every worker is outside.  It
returns to Python after `slice` nanoseconds, between two tasks, to let signal handlers run, and is then called again to
go on in the same stage; workers meanwhile go on by themselves.  Whether a run may still be abandoned is decided once, in
the `decision` word, either by the first thread to enter the first stage that overwrites something or by the caller's
``settle``; workers look at it between tasks too, so that nobody waits for the rest of a long stage.

The words of a table and of the pool's state are laid out below; `table.py` and `pool.py` fill them in.
"""

from __future__ import annotations

import hashlib
import string

from lezero.codegen.launch import KernelSource
from lezero.codegen.target import Target

# Table: int64 words.
HEADER_WORDS = 8
STAGES, STAGES_AT, COUNTERS_AT, OPERANDS, OVERWRITE_STAGE, PARALLEL = range(6)
STAGE_WORDS = 4
STAGE_ITEMS, STAGE_ITEMS_AT, STAGE_TASKS, STAGE_SERIAL = range(4)
ITEM_WORDS = 8
ITEM_FIRST, ITEM_END, ITEM_TASKS, ITEM_ADDRESS, ITEM_OPERANDS, ITEM_OPERANDS_AT, ITEM_PARAMS_AT, ITEM_NUMBER = range(8)
COUNTER_WORDS = 8  # claim, done; a cache line for each stage
PROFILE_WORDS = 3  # first start, last end, busy time of each item, nanoseconds

# State of a pool: byte offsets.  Words that different threads write at different times are kept two lines apart.
STATE_BYTES = 1280
TABLE, BASES, PROFILE, NEXT = 0, 8, 16, 24  # of the run, set by the caller; NEXT: 0, later 1 + the stage to go on from
THREADS, SCRATCH, SCRATCH_STRIDE, IDLE_SPINS, WAIT_SPINS = 32, 40, 48, 56, 64
SYSCALL, CLOCK, CLOCK_UNIT, NAP, NAP_LENGTH = 72, 80, 88, 96, 104
GENERATION, OPEN, ACTIVE, WAITERS, EVENT, SLEEPERS, DECISION, STOP = range(128, 128 + 8 * 128, 128)

# The decision word.
UNDECIDED, COMMITTED, ABORTED = range(3)

MOST_CLAIMED = 4
"""Tasks a thread takes at a time at most, and only where they are many because items are (the updates of parameters): an
interrupt is looked at after them."""

FINISHED = -1
"""What ``walk`` returns, and leaves in NEXT, when the run is over; otherwise 1 + the stage to go on from."""

_FUTEX_NUMBER = {"x86_64": 202, "aarch64": 98}
FUTEX_WAIT, FUTEX_WAKE = 128, 129  # both private to the process


def source(target: Target) -> KernelSource:
    """The walker as a kernel source, so that it is compiled and cached like any other kernel."""
    text = emit(target)
    return KernelSource("walker", "walker " + hashlib.sha256(text.encode()).hexdigest(), lambda target: text)


def emit(target: Target) -> str:
    """LLVM IR of ``walk``, ``settle``, ``work`` and ``stop``."""
    architecture = target.triple.split("-")[0]
    futex = _FUTEX_NUMBER.get(architecture, 0) if "linux" in target.triple else 0
    text = _IR + (_FUTEX if futex else _NO_FUTEX) + (_CLOCK_WINDOWS if "windows" in target.triple else _CLOCK_POSIX)
    words = {name: value for name, value in globals().items() if name.isupper() and isinstance(value, int)}
    pause, declaration = _PAUSE.get(architecture, ("", ""))
    return string.Template(text + declaration).substitute(words, FUTEX=futex, PAUSE=pause)


_YIELD = "call void @llvm.aarch64.hint(i32 1)", "declare void @llvm.aarch64.hint(i32)"
_PAUSE = {"x86_64": ("call void @llvm.x86.sse2.pause()", "declare void @llvm.x86.sse2.pause()"),
          "aarch64": _YIELD, "arm64": _YIELD}  # fmt: skip

_FUTEX = """
define internal void @sleep(ptr %state, ptr %word, i32 %expected) nounwind {
  %at = getelementptr i8, ptr %state, i64 $SYSCALL
  %syscall = load ptr, ptr %at
  call i64 (i64, ...) %syscall(i64 $FUTEX, ptr %word, i64 $FUTEX_WAIT, i32 %expected, ptr null, ptr null, i64 0)
  ret void
}
define internal void @wake(ptr %state, ptr %word, i64 %many) nounwind {
  %at = getelementptr i8, ptr %state, i64 $SYSCALL
  %syscall = load ptr, ptr %at
  call i64 (i64, ...) %syscall(i64 $FUTEX, ptr %word, i64 $FUTEX_WAKE, i64 %many, ptr null, ptr null, i64 0)
  ret void
}
"""

# Without a futex a waiting thread naps and looks again.
_NO_FUTEX = """
define internal void @sleep(ptr %state, ptr %word, i32 %expected) nounwind {
  %at = getelementptr i8, ptr %state, i64 $NAP
  %nap = load ptr, ptr %at
  %length.at = getelementptr i8, ptr %state, i64 $NAP_LENGTH
  %length = load i32, ptr %length.at
  call i32 %nap(i32 %length)
  ret void
}
define internal void @wake(ptr %state, ptr %word, i64 %many) nounwind {
  ret void
}
"""

_CLOCK_POSIX = """
define internal i64 @now(ptr %state) nounwind {
  %at = getelementptr i8, ptr %state, i64 $CLOCK
  %clock = load ptr, ptr %at
  %time = alloca [2 x i64]
  %which.at = getelementptr i8, ptr %state, i64 $CLOCK_UNIT
  %which = load i64, ptr %which.at
  %which.32 = trunc i64 %which to i32
  call i32 %clock(i32 %which.32, ptr %time)
  %seconds = load i64, ptr %time
  %rest.at = getelementptr i64, ptr %time, i64 1
  %rest = load i64, ptr %rest.at
  %whole = mul i64 %seconds, 1000000000
  %sum = add i64 %whole, %rest
  ret i64 %sum
}
"""

_CLOCK_WINDOWS = """
define internal i64 @now(ptr %state) nounwind {
  %at = getelementptr i8, ptr %state, i64 $CLOCK
  %clock = load ptr, ptr %at
  %ticks = alloca i64
  call i32 %clock(ptr %ticks)
  %nanoseconds.at = getelementptr i8, ptr %state, i64 $CLOCK_UNIT
  %nanoseconds = load i64, ptr %nanoseconds.at
  %count = load i64, ptr %ticks
  %sum = mul i64 %count, %nanoseconds
  ret i64 %sum
}
"""

_IR = """
declare i64 @llvm.cttz.i64(i64, i1)
declare i64 @llvm.fshr.i64(i64, i64, i64)
declare i64 @llvm.umin.i64(i64, i64)
declare i64 @llvm.umax.i64(i64, i64)
declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)

; Wait until *word == value: spin, then sleep on `event` until somebody who completed a word says so.
define internal void @await(ptr %state, ptr %word, i64 %value) nounwind noinline {
entry:
  %spins.at = getelementptr i8, ptr %state, i64 $WAIT_SPINS
  %spins = load i64, ptr %spins.at
  %waiters = getelementptr i8, ptr %state, i64 $WAITERS
  %event = getelementptr i8, ptr %state, i64 $EVENT
  br label %spin
spin:
  %i = phi i64 [ 0, %entry ], [ %i.next, %pause ]
  %seen = load atomic i64, ptr %word acquire, align 8
  %complete = icmp eq i64 %seen, %value
  br i1 %complete, label %out, label %pause
pause:
  $PAUSE
  %i.next = add i64 %i, 1
  %patient = icmp ult i64 %i.next, %spins
  br i1 %patient, label %spin, label %doze
doze:
  %w = atomicrmw add ptr %waiters, i64 1 seq_cst
  br label %look
look:
  %e = load atomic i32, ptr %event seq_cst, align 4
  %again = load atomic i64, ptr %word seq_cst, align 8
  %there = icmp eq i64 %again, %value
  br i1 %there, label %rise, label %sleep
sleep:
  call void @sleep(ptr %state, ptr %event, i32 %e)
  br label %look
rise:
  %w2 = atomicrmw sub ptr %waiters, i64 1 seq_cst
  br label %out
out:
  ret void
}

; Somebody may sleep in @await for a word that has just become complete.
define internal void @announce(ptr %state) nounwind {
  %waiters = getelementptr i8, ptr %state, i64 $WAITERS
  %n = load atomic i64, ptr %waiters seq_cst, align 8
  %any = icmp ne i64 %n, 0
  br i1 %any, label %tell, label %out
tell:
  %event = getelementptr i8, ptr %state, i64 $EVENT
  %e = atomicrmw add ptr %event, i32 1 seq_cst
  call void @wake(ptr %state, ptr %event, i64 2147483647)
  br label %out
out:
  ret void
}

; Run one task of an item.
define internal void @run(ptr %state, ptr %table, i64 %thread, ptr %item, i64 %task, ptr %pointers) nounwind {
entry:
  %count.at = getelementptr i64, ptr %item, i64 $ITEM_OPERANDS
  %count = load i64, ptr %count.at
  %pairs.at = getelementptr i64, ptr %item, i64 $ITEM_OPERANDS_AT
  %pairs.index = load i64, ptr %pairs.at
  %pairs = getelementptr i64, ptr %table, i64 %pairs.index
  %bases.at = getelementptr i8, ptr %state, i64 $BASES
  %bases = load ptr, ptr %bases.at
  br label %resolve
resolve:
  %i = phi i64 [ 0, %entry ], [ %i.next, %operand ]
  %more = icmp ult i64 %i, %count
  br i1 %more, label %operand, label %call
operand:
  %i2 = shl i64 %i, 1
  %base.at = getelementptr i64, ptr %pairs, i64 %i2
  %base = load i64, ptr %base.at
  %offset.at = getelementptr i64, ptr %base.at, i64 1
  %offset = load i64, ptr %offset.at
  %start.at = getelementptr ptr, ptr %bases, i64 %base
  %start = load ptr, ptr %start.at
  %pointer = getelementptr i8, ptr %start, i64 %offset
  %slot = getelementptr ptr, ptr %pointers, i64 %i
  store ptr %pointer, ptr %slot
  %i.next = add i64 %i, 1
  br label %resolve
call:
  %address.at = getelementptr i64, ptr %item, i64 $ITEM_ADDRESS
  %kernel = load ptr, ptr %address.at
  %params.at = getelementptr i64, ptr %item, i64 $ITEM_PARAMS_AT
  %params.index = load i64, ptr %params.at
  %params = getelementptr i64, ptr %table, i64 %params.index
  %tasks.at = getelementptr i64, ptr %item, i64 $ITEM_TASKS
  %tasks = load i64, ptr %tasks.at
  %scratch.at = getelementptr i8, ptr %state, i64 $SCRATCH
  %scratch.all = load ptr, ptr %scratch.at
  %stride.at = getelementptr i8, ptr %state, i64 $SCRATCH_STRIDE
  %stride = load i64, ptr %stride.at
  %scratch.offset = mul i64 %stride, %thread
  %scratch = getelementptr i8, ptr %scratch.all, i64 %scratch.offset
  %profile.at = getelementptr i8, ptr %state, i64 $PROFILE
  %profile = load ptr, ptr %profile.at
  %timed = icmp ne ptr %profile, null
  br i1 %timed, label %with, label %without
without:
  call void %kernel(ptr %pointers, ptr %params, i64 %task, i64 %tasks, ptr %scratch)
  ret void
with:
  %from = call i64 @now(ptr %state)
  call void %kernel(ptr %pointers, ptr %params, i64 %task, i64 %tasks, ptr %scratch)
  %to = call i64 @now(ptr %state)
  %number.at = getelementptr i64, ptr %item, i64 $ITEM_NUMBER
  %number = load i64, ptr %number.at
  %mine.index = mul i64 %number, $PROFILE_WORDS
  %first = getelementptr i64, ptr %profile, i64 %mine.index
  %last = getelementptr i64, ptr %first, i64 1
  %busy = getelementptr i64, ptr %first, i64 2
  %took = sub i64 %to, %from
  %o1 = atomicrmw umin ptr %first, i64 %from monotonic
  %o2 = atomicrmw umax ptr %last, i64 %to monotonic
  %o3 = atomicrmw add ptr %busy, i64 %took monotonic
  ret void
}

; Run tasks %from .. %to-1 of a stage; %item is where the previous call ended.  Returns the item it ended in.
define internal i64 @share(ptr %state, ptr %table, i64 %thread, i64 %items, i64 %item, i64 %from, i64 %to, ptr %pointers) nounwind {
entry:
  br label %task
task:
  %t = phi i64 [ %from, %entry ], [ %t.next, %ran ]
  %at = phi i64 [ %item, %entry ], [ %here, %ran ]
  %more = icmp ult i64 %t, %to
  br i1 %more, label %rewind, label %out
rewind:
  %index.now = mul i64 %at, $ITEM_WORDS
  %now.words = getelementptr i64, ptr %table, i64 %items
  %now = getelementptr i64, ptr %now.words, i64 %index.now
  %first = load i64, ptr %now
  %before = icmp ult i64 %t, %first
  %begin = select i1 %before, i64 0, i64 %at
  br label %find
find:
  %here = phi i64 [ %begin, %rewind ], [ %next, %skip ]
  %index = mul i64 %here, $ITEM_WORDS
  %words = getelementptr i64, ptr %table, i64 %items
  %this = getelementptr i64, ptr %words, i64 %index
  %end.at = getelementptr i64, ptr %this, i64 $ITEM_END
  %end = load i64, ptr %end.at
  %past = icmp uge i64 %t, %end
  br i1 %past, label %skip, label %ran
skip:
  %next = add i64 %here, 1
  br label %find
ran:
  %first.here = load i64, ptr %this
  %local = sub i64 %t, %first.here
  call void @run(ptr %state, ptr %table, i64 %thread, ptr %this, i64 %local, ptr %pointers)
  %t.next = add i64 %t, 1
  br label %task
out:
  ret i64 %at
}

; Whether to leave a stage between two of its tasks: the caller when its time is up, a worker when the run is abandoned.
define internal i1 @enough(ptr %state, ptr %decision, i64 %until) nounwind {
  %limited = icmp ne i64 %until, 0
  br i1 %limited, label %time, label %fate
time:
  %now = call i64 @now(ptr %state)
  %over = icmp ugt i64 %now, %until
  ret i1 %over
fate:
  %decided = load atomic i64, ptr %decision monotonic, align 8
  %aborted = icmp eq i64 %decided, $ABORTED
  ret i1 %aborted
}

; Go through the stages from %start on.  Returns $FINISHED, or 1 + the stage to go on from when %until has passed.
define internal i64 @stages(ptr %state, i64 %thread, i64 %start, i64 %until) nounwind noinline {
entry:
  %table = load ptr, ptr %state
  %count = load i64, ptr %table
  %stages.at = getelementptr i64, ptr %table, i64 $STAGES_AT
  %stages.index = load i64, ptr %stages.at
  %all = getelementptr i64, ptr %table, i64 %stages.index
  %counters.at = getelementptr i64, ptr %table, i64 $COUNTERS_AT
  %counters.index = load i64, ptr %counters.at
  %counters = getelementptr i64, ptr %table, i64 %counters.index
  %operands.at = getelementptr i64, ptr %table, i64 $OPERANDS
  %operands = load i64, ptr %operands.at
  %overwrite.at = getelementptr i64, ptr %table, i64 $OVERWRITE_STAGE
  %overwrite = load i64, ptr %overwrite.at
  %threads.at = getelementptr i8, ptr %state, i64 $THREADS
  %threads = load i64, ptr %threads.at
  %decision = getelementptr i8, ptr %state, i64 $DECISION
  %pointers = alloca ptr, i64 %operands, align 64
  br label %stage
stage:
  %s = phi i64 [ %start, %entry ], [ %s.next, %next ], [ %s.next, %time ]
  %more = icmp ult i64 %s, %count
  br i1 %more, label %decide, label %finished
decide:
  %fatal = icmp eq i64 %s, %overwrite
  br i1 %fatal, label %commit, label %check
commit:
  %swap = cmpxchg ptr %decision, i64 $UNDECIDED, i64 $COMMITTED seq_cst seq_cst
  br label %check
check:
  %decided = load atomic i64, ptr %decision acquire, align 8
  %aborted = icmp eq i64 %decided, $ABORTED
  br i1 %aborted, label %finished, label %begin
begin:
  %s.index = mul i64 %s, $STAGE_WORDS
  %this = getelementptr i64, ptr %all, i64 %s.index
  %c.index = mul i64 %s, $COUNTER_WORDS
  %claim = getelementptr i64, ptr %counters, i64 %c.index
  %done = getelementptr i64, ptr %claim, i64 1
  %items.at = getelementptr i64, ptr %this, i64 $STAGE_ITEMS_AT
  %items = load i64, ptr %items.at
  %tasks.at = getelementptr i64, ptr %this, i64 $STAGE_TASKS
  %tasks = load i64, ptr %tasks.at
  %serial.at = getelementptr i64, ptr %this, i64 $STAGE_SERIAL
  %serial = load i64, ptr %serial.at
  %is.serial = icmp ne i64 %serial, 0
  br i1 %is.serial, label %serial.claim, label %sized

serial.claim:
  %taken = atomicrmw xchg ptr %claim, i64 1 acq_rel
  %free = icmp eq i64 %taken, 0
  br i1 %free, label %serial.run, label %wait
serial.run:
  %si = call i64 @share(ptr %state, ptr %table, i64 %thread, i64 %items, i64 0, i64 0, i64 %tasks, ptr %pointers)
  br label %add

sized:
  %few = icmp ule i64 %tasks, 64
  br i1 %few, label %mask, label %counter

mask:
  %scaled = mul i64 %tasks, %thread
  %own = udiv i64 %scaled, %threads
  %shift = sub i64 64, %tasks
  %valid = lshr i64 -1, %shift
  %claimed.0 = load atomic i64, ptr %claim acquire, align 8
  br label %mask.look
mask.look:
  %claimed = phi i64 [ %claimed.0, %mask ], [ %claimed.1, %mask.taken ], [ %claimed.2, %mask.ran ]
  %m.item = phi i64 [ 0, %mask ], [ %m.item, %mask.taken ], [ %m.item.next, %mask.ran ]
  %m.ran = phi i64 [ 0, %mask ], [ %m.ran, %mask.taken ], [ %m.ran.next, %mask.ran ]
  %clear = xor i64 %claimed, %valid
  %none = icmp eq i64 %clear, 0
  br i1 %none, label %worked, label %mask.pick
mask.pick:
  %turned = call i64 @llvm.fshr.i64(i64 %clear, i64 %clear, i64 %own)
  %ahead = call i64 @llvm.cttz.i64(i64 %turned, i1 true)
  %far = add i64 %own, %ahead
  %pick = and i64 %far, 63
  %bit = shl i64 1, %pick
  %old = atomicrmw or ptr %claim, i64 %bit acq_rel
  %had = and i64 %old, %bit
  %claimed.1 = or i64 %old, %bit
  %late = icmp ne i64 %had, 0
  br i1 %late, label %mask.taken, label %mask.ran
mask.taken:
  br label %mask.look
mask.ran:
  %pick.end = add i64 %pick, 1
  %m.item.next = call i64 @share(ptr %state, ptr %table, i64 %thread, i64 %items, i64 %m.item, i64 %pick, i64 %pick.end, ptr %pointers)
  %m.ran.next = add i64 %m.ran, 1
  %claimed.2 = load atomic i64, ptr %claim acquire, align 8
  %m.enough = call i1 @enough(ptr %state, ptr %decision, i64 %until)
  br i1 %m.enough, label %leave, label %mask.look

counter:
  %portions = shl i64 %threads, 3
  %portion = udiv i64 %tasks, %portions
  %some = call i64 @llvm.umax.i64(i64 %portion, i64 1)
  %item.count = load i64, ptr %this
  %each = udiv i64 %tasks, %item.count
  %single = icmp ugt i64 %each, $MOST_CLAIMED
  %bounded = call i64 @llvm.umin.i64(i64 %some, i64 $MOST_CLAIMED)
  %chunk = select i1 %single, i64 1, i64 %bounded
  br label %counter.take
counter.take:
  %c.item = phi i64 [ 0, %counter ], [ %c.item.next, %counter.run ]
  %c.ran = phi i64 [ 0, %counter ], [ %c.ran.next, %counter.run ]
  %from = atomicrmw add ptr %claim, i64 %chunk acq_rel
  %inside = icmp ult i64 %from, %tasks
  br i1 %inside, label %counter.run, label %worked
counter.run:
  %wide = add i64 %from, %chunk
  %to = call i64 @llvm.umin.i64(i64 %wide, i64 %tasks)
  %c.item.next = call i64 @share(ptr %state, ptr %table, i64 %thread, i64 %items, i64 %c.item, i64 %from, i64 %to, ptr %pointers)
  %part = sub i64 %to, %from
  %c.ran.next = add i64 %c.ran, %part
  %c.enough = call i1 @enough(ptr %state, ptr %decision, i64 %until)
  br i1 %c.enough, label %leave, label %counter.take

worked:
  %ran = phi i64 [ %m.ran, %mask.look ], [ %c.ran, %counter.take ]
  %idle = icmp eq i64 %ran, 0
  br i1 %idle, label %wait, label %add
add:
  %mine = phi i64 [ %tasks, %serial.run ], [ %ran, %worked ]
  %sofar = atomicrmw add ptr %done, i64 %mine seq_cst
  %total = add i64 %sofar, %mine
  %last = icmp eq i64 %total, %tasks
  br i1 %last, label %complete, label %wait
complete:
  call void @announce(ptr %state)
  br label %next
wait:
  call void @await(ptr %state, ptr %done, i64 %tasks)
  br label %next
leave:
  %so.far = phi i64 [ %m.ran.next, %mask.ran ], [ %c.ran.next, %counter.run ]
  %before = atomicrmw add ptr %done, i64 %so.far seq_cst
  %after = add i64 %before, %so.far
  %all.done = icmp eq i64 %after, %tasks
  br i1 %all.done, label %leave.last, label %left
leave.last:
  call void @announce(ptr %state)
  br label %left
left:
  %again = add i64 %s, 1
  ret i64 %again
next:
  %s.next = add i64 %s, 1
  %limited = icmp ne i64 %until, 0
  br i1 %limited, label %time, label %stage
time:
  %now = call i64 @now(ptr %state)
  %over = icmp ugt i64 %now, %until
  %remaining = icmp ult i64 %s.next, %count
  %pause = and i1 %over, %remaining
  br i1 %pause, label %paused, label %stage
paused:
  %beyond = add i64 %s.next, 1
  ret i64 %beyond
finished:
  ret i64 $FINISHED
}

; Let nobody else in, and wait until everybody is out.
define internal void @close(ptr %state) nounwind {
  %open = getelementptr i8, ptr %state, i64 $OPEN
  store atomic i64 0, ptr %open seq_cst, align 8
  %active = getelementptr i8, ptr %state, i64 $ACTIVE
  call void @await(ptr %state, ptr %active, i64 0)
  ret void
}

; The caller's part of a run: from its beginning, or going on.
define i64 @walk(ptr %state, i64 %slice) nounwind {
entry:
  %table = load ptr, ptr %state
  %next.at = getelementptr i8, ptr %state, i64 $NEXT
  %start = load i64, ptr %next.at
  %fresh = icmp eq i64 %start, 0
  br i1 %fresh, label %prepare, label %limit
prepare:
  %counters.at = getelementptr i64, ptr %table, i64 $COUNTERS_AT
  %counters.index = load i64, ptr %counters.at
  %counters = getelementptr i64, ptr %table, i64 %counters.index
  %count = load i64, ptr %table
  %words = mul i64 %count, $COUNTER_WORDS
  %bytes = shl i64 %words, 3
  call void @llvm.memset.p0.i64(ptr align 64 %counters, i8 0, i64 %bytes, i1 false)
  %decision = getelementptr i8, ptr %state, i64 $DECISION
  store i64 $UNDECIDED, ptr %decision
  %threads.at = getelementptr i8, ptr %state, i64 $THREADS
  %threads = load i64, ptr %threads.at
  %parallel.at = getelementptr i64, ptr %table, i64 $PARALLEL
  %parallel = load i64, ptr %parallel.at
  %hands = call i64 @llvm.umin.i64(i64 %threads, i64 %parallel)
  %alone = icmp ule i64 %hands, 1
  br i1 %alone, label %limit, label %publish
publish:
  %generation = getelementptr i8, ptr %state, i64 $GENERATION
  %g.old = load i32, ptr %generation
  %g = add i32 %g.old, 1
  %g.64 = zext i32 %g to i64
  %mark = or i64 %g.64, 4294967296
  %open = getelementptr i8, ptr %state, i64 $OPEN
  store atomic i64 %mark, ptr %open seq_cst, align 8
  store atomic i32 %g, ptr %generation seq_cst, align 4
  %sleepers = getelementptr i8, ptr %state, i64 $SLEEPERS
  %asleep = load atomic i64, ptr %sleepers seq_cst, align 8
  %any = icmp ne i64 %asleep, 0
  br i1 %any, label %rouse, label %limit
rouse:
  %helpers = sub i64 %hands, 1
  call void @wake(ptr %state, ptr %generation, i64 %helpers)
  br label %limit
limit:
  %limited = icmp ne i64 %slice, 0
  br i1 %limited, label %clock, label %go
clock:
  %now = call i64 @now(ptr %state)
  %end = add i64 %now, %slice
  br label %go
go:
  %until = phi i64 [ 0, %limit ], [ %end, %clock ]
  %first = call i64 @llvm.umax.i64(i64 %start, i64 1)
  %from = sub i64 %first, 1
  %next = call i64 @stages(ptr %state, i64 0, i64 %from, i64 %until)
  store i64 %next, ptr %next.at
  %finished = icmp eq i64 %next, $FINISHED
  br i1 %finished, label %shut, label %out
shut:
  call void @close(ptr %state)
  br label %out
out:
  ret i64 %next
}

; The caller was interrupted between two calls of @walk, or beside one: abandon the run if it has not overwritten
; anything, otherwise walk it to its end.  Returns whether it has been completed.  One call, so that a second interrupt
; finds everything settled.
define i64 @settle(ptr %state) nounwind {
entry:
  %next.at = getelementptr i8, ptr %state, i64 $NEXT
  %next = load i64, ptr %next.at
  switch i64 %next, label %begun [ i64 0, label %drop
                                   i64 $FINISHED, label %completed ]
begun:
  %decision = getelementptr i8, ptr %state, i64 $DECISION
  %swap = cmpxchg ptr %decision, i64 $UNDECIDED, i64 $ABORTED seq_cst seq_cst
  %won = extractvalue { i64, i1 } %swap, 1
  br i1 %won, label %abandon, label %complete
abandon:
  call void @close(ptr %state)
  br label %drop
drop:
  store i64 $FINISHED, ptr %next.at
  ret i64 0
complete:
  %end = call i64 @walk(ptr %state, i64 0)
  br label %completed
completed:
  ret i64 1
}

; A worker's life: wait for a generation it has not seen, take part if that run is still open.
define void @work(ptr %state, i64 %thread) nounwind {
entry:
  %generation = getelementptr i8, ptr %state, i64 $GENERATION
  %open = getelementptr i8, ptr %state, i64 $OPEN
  %active = getelementptr i8, ptr %state, i64 $ACTIVE
  %sleepers = getelementptr i8, ptr %state, i64 $SLEEPERS
  %stop.at = getelementptr i8, ptr %state, i64 $STOP
  %spins.at = getelementptr i8, ptr %state, i64 $IDLE_SPINS
  %spins = load i64, ptr %spins.at
  br label %idle
idle:
  %known = phi i32 [ 0, %entry ], [ %g, %left ]
  br label %spin
spin:
  %i = phi i64 [ 0, %idle ], [ %i.next, %pause ], [ %spins, %doze ]
  %g = load atomic i32, ptr %generation acquire, align 4
  %new = icmp ne i32 %g, %known
  br i1 %new, label %arrived, label %tired
tired:
  %i.next = add i64 %i, 1
  %patient = icmp ult i64 %i.next, %spins
  br i1 %patient, label %pause, label %doze
pause:
  $PAUSE
  br label %spin
doze:
  %d1 = atomicrmw add ptr %sleepers, i64 1 seq_cst
  call void @sleep(ptr %state, ptr %generation, i32 %known)
  %d2 = atomicrmw sub ptr %sleepers, i64 1 seq_cst
  br label %spin
arrived:
  %stop = load atomic i64, ptr %stop.at acquire, align 8
  %end = icmp ne i64 %stop, 0
  br i1 %end, label %out, label %enter
enter:
  %a1 = atomicrmw add ptr %active, i64 1 seq_cst
  %opened = load atomic i64, ptr %open seq_cst, align 8
  %g.64 = zext i32 %g to i64
  %mark = or i64 %g.64, 4294967296
  %invited = icmp eq i64 %opened, %mark
  br i1 %invited, label %take.part, label %leave
take.part:
  %r = call i64 @stages(ptr %state, i64 %thread, i64 0, i64 0)
  br label %leave
leave:
  %a2 = atomicrmw sub ptr %active, i64 1 seq_cst
  %last = icmp eq i64 %a2, 1
  br i1 %last, label %tell, label %left
tell:
  call void @announce(ptr %state)
  br label %left
left:
  br label %idle
out:
  ret void
}

; Send all workers home.
define void @stop(ptr %state) nounwind {
  %stop = getelementptr i8, ptr %state, i64 $STOP
  store atomic i64 1, ptr %stop seq_cst, align 8
  %generation = getelementptr i8, ptr %state, i64 $GENERATION
  %g = atomicrmw add ptr %generation, i32 1 seq_cst
  call void @wake(ptr %state, ptr %generation, i64 2147483647)
  ret void
}
"""
