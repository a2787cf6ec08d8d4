"""A few threads for tasks that should be short, and go on when one is not.

A thread cannot be killed. One whose task takes too long is left to it, and another takes its
place; it ends when the task does. Of such threads there are only so many: after that the others
do with fewer.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from enum import IntEnum

Task = Callable[[], None]


class Turn(IntEnum):
    """The order in which waiting tasks are done."""

    FIRST = 0
    NEXT = 1
    LATER = 2  # when nothing else waits


class Workers:
    """Threads for tasks, which must not raise. Any thread may call it. The threads start with the
    first task and do not keep the process alive."""

    def __init__(self, num_threads: int, max_stuck: int) -> None:
        self._num_threads = num_threads
        self._max_stuck = max_stuck
        self._tasks: tuple[deque[Task], ...] = tuple(deque() for _ in Turn)
        self._changed = threading.Condition()
        self._threads: dict[threading.Thread, Task | None] = {}  # what each is at
        self._left: set[threading.Thread] = set()  # to a task that takes too long
        self._num_idle = 0
        self._closed = False

    def put(self, task: Task, turn: Turn = Turn.NEXT) -> None:
        """Have the task done in its turn; never once it is closed."""
        with self._changed:
            if self._closed:
                return
            self._tasks[turn].append(task)
            if self._num_idle < self._num_waiting():
                self._start_one()
            self._changed.notify()

    def take_out(self, task: Task) -> bool:
        """Take a task out of those that wait. Return False if it has begun."""
        with self._changed:
            for tasks in self._tasks:
                if task in tasks:
                    tasks.remove(task)
                    return True
            return False

    def leave(self, task: Task) -> None:
        """Leave the thread to its task, which takes too long, and have another take its place."""
        with self._changed:
            thread = next((each for each, at in self._threads.items() if at is task), None)
            if thread is None or len(self._left) >= self._max_stuck:
                return
            self._left.add(thread)
            if self._num_waiting():
                self._start_one()

    def close(self, patience_seconds: float = 1.0) -> None:
        """Do nothing of what waits; wait for what runs, so long."""
        with self._changed:
            self._closed = True
            for tasks in self._tasks:
                tasks.clear()
            self._changed.notify_all()
            threads = list(self._threads)
        deadline = time.monotonic() + patience_seconds
        for thread in threads:
            if thread is not threading.current_thread():
                thread.join(max(0.0, deadline - time.monotonic()))

    def _start_one(self) -> None:
        if len(self._threads) - len(self._left) < self._num_threads:
            thread = threading.Thread(target=self._work, name="compile", daemon=True)
            self._threads[thread] = None
            thread.start()

    def _work(self) -> None:
        me = threading.current_thread()
        while (task := self._next(me)) is not None:
            task()
            del task

    def _next(self, me: threading.Thread) -> Task | None:
        """Return the next task for this thread; None if it is to end."""
        with self._changed:
            self._threads[me] = None
            while not (self._num_waiting() or self._closed or me in self._left):
                self._num_idle += 1
                self._changed.wait()
                self._num_idle -= 1
            if self._closed or me in self._left:
                del self._threads[me]
                self._left.discard(me)
                return None
            task = next(tasks for tasks in self._tasks if tasks).popleft()
            self._threads[me] = task
            return task

    def _num_waiting(self) -> int:
        return sum(map(len, self._tasks))
