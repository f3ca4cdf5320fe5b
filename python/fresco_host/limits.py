"""Limits for what packs decide: how long their code may take to answer a question of the engine, and how much it may list."""

import ctypes
import itertools
import signal
import threading
import time

# Seconds that one class may take to say what it declares, and that a check of its inputs may take.
DESCRIBE = 4.0
CHECK = 8.0
# How often it is tried to stop what goes on: a pack may catch what is raised in it.
AGAIN = 0.2
# Inputs, outputs and hidden inputs of one class.
NAMES = 4096
# Values in what a class declares, choices of lists among them.
VALUES = 2_000_000


class TooLong(BaseException):
    """Raised in code of a pack. No `Exception`, which packs catch."""


class TooMuch(ValueError):
    """A pack lists without an end."""


class _Entry:
    def __init__(self, thread, deadline):
        self.thread, self.deadline, self.fired = thread, deadline, False


class _Watch:
    """One thread that raises `TooLong` in those that take longer than they may."""

    def __init__(self):
        # Taken directly: what is raised in a thread must never find the lock taken and not yet given back.
        self.lock = threading.Lock()
        self.changed = threading.Condition(self.lock)
        self.entries = []
        self.started = False

    def begin(self, seconds):
        entry = _Entry(threading.get_ident(), time.monotonic() + seconds)
        with self.lock:
            if not self.started:
                self.started = True
                threading.Thread(target=self._run, name="limits", daemon=True).start()
            self.entries.append(entry)
            self.changed.notify()
        return entry

    def end(self, entry):
        with self.lock:
            if entry in self.entries:
                self.entries.remove(entry)
            if entry.fired:
                # What was to be raised and was not yet.
                ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(entry.thread), None)

    def _run(self):
        main = threading.main_thread().ident
        with self.lock:
            while True:
                now = time.monotonic()
                for entry in self.entries:
                    if entry.deadline <= now:
                        entry.fired, entry.deadline = True, now + AGAIN
                        self._stop(entry.thread, main)
                soonest = min((entry.deadline for entry in self.entries), default=None)
                self.changed.wait(None if soonest is None else max(0.0, soonest - now))

    def _stop(self, thread, main):
        if thread == main and _signalled[0]:
            # Wakes it up from a wait as well, which the other way does not.
            signal.pthread_kill(main, signal.SIGURG)
        else:
            ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(TooLong))


_watch = _Watch()
_signalled = [False]
_on_main = []


def setup():
    """On the main thread, before packs are imported."""
    if hasattr(signal, "pthread_kill") and hasattr(signal, "SIGURG"):
        signal.signal(signal.SIGURG, _interrupt)
        _signalled[0] = True


def _interrupt(_number, _frame):
    # A signal may come when what it was meant for has ended.
    if _on_main and _on_main[-1].fired:
        raise TooLong


def within(seconds, function, *arguments):
    """What the function gives; raises `TimeoutError` if it takes longer than this."""
    on_main = threading.current_thread() is threading.main_thread()
    entry = None
    try:
        try:
            entry = _watch.begin(seconds)
            if on_main:
                _on_main.append(entry)
            return function(*arguments)
        finally:
            _finish(entry, on_main)
    except TooLong:
        _finish(entry, on_main)
        raise TimeoutError(f"it took longer than {seconds:g} seconds") from None


def _finish(entry, on_main):
    # It may be interrupted itself, but not often: the pauses between two attempts are long.
    while True:
        try:
            if on_main and entry in _on_main:
                _on_main.remove(entry)
            if entry is not None:
                _watch.end(entry)
            return
        except TooLong:
            continue


def listed(things, limit=NAMES):
    """What an object of a pack lists; nothing if it lists nothing."""
    if isinstance(things, (list, tuple)):
        found = list(itertools.islice(iter(things), limit + 1))
    elif hasattr(type(things), "keys"):
        found = list(itertools.islice(iter(things.keys()), limit + 1))
    elif hasattr(type(things), "__iter__"):
        found = list(itertools.islice(iter(things), limit + 1))
    else:
        # Python would ask it for 0, 1, 2 and so on, for which some have an answer without an end.
        return []
    if len(found) > limit:
        raise TooMuch(f"it lists more than {limit} names")
    return found
