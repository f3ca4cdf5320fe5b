"""Frames between the engine and this process.

A frame is four bytes of length (little-endian, of what follows), one byte of kind, eight bytes of number, and a body of
JSON. Numbers of tensors are not in the body: they are in a memory file whose descriptor comes with the frame, or, where
there are no such descriptors, in a file that the body names.
"""

import array
import collections
import ctypes
import json
import mmap
import os
import socket
import struct
import sys
import tempfile
import threading
import traceback
import weakref

from . import WorkerError

try:
    import fcntl
except ImportError:
    fcntl = None

CALL, REPLY, ERROR, EVENT = range(4)
_text = json.JSONEncoder(separators=(",", ":")).encode
LIMIT = 64 << 20
HEAD = struct.Struct("<IBQ")
_fcntl_seals = 0x0001 | 0x0002 | 0x0004 | 0x0008
DESCRIPTORS = sys.platform.startswith("linux") and hasattr(os, "memfd_create")


# What is no longer used here; told to the engine with the next message, since this is filled by the garbage collector.
_done_segments = collections.deque()
_done_handles = collections.deque()


class Segment:
    """Bytes that came with a frame. Views are private: what is written into them stays here."""

    def __init__(self, fd, size, number=None):
        self.size = size
        self.map = mmap.mmap(fd, size, access=mmap.ACCESS_COPY)
        if number is None:
            # Kept to compare with: nobody can change it.
            self.fd = os.dup(fd)
            weakref.finalize(self.map, _close, self.fd).atexit = False
        else:
            self.fd = os.dup(fd)
            weakref.finalize(self.map, _let_go, self.fd, number).atexit = False

    def original(self):
        return mmap.mmap(self.fd, self.size, access=mmap.ACCESS_READ)

    def untouched(self, start, size):
        """Whether no page was written; None where the system does not say."""
        if not _PAGES[0]:
            return None
        try:
            address = ctypes.addressof(ctypes.c_char.from_buffer(self.map)) + start
            first = address // mmap.PAGESIZE
            count = (address + size - 1) // mmap.PAGESIZE - first + 1
            with open("/proc/self/pagemap", "rb", buffering=0) as file:
                entries = os.pread(file.fileno(), count * 8, first * 8)
        except (OSError, ValueError, TypeError, BufferError):
            _PAGES[0] = False
            return None
        if len(entries) != count * 8:
            _PAGES[0] = False
            return None
        # A page that was written is in memory and no longer of the file, or swapped out.
        bits = int.from_bytes(entries, "little")
        ones = int.from_bytes(b"\1\0\0\0\0\0\0\0" * count, "little")
        present, swapped, of_file = bits >> 63 & ones, bits >> 62 & ones, bits >> 61 & ones
        return not (present & ~of_file) and not swapped


_PAGES = [sys.platform.startswith("linux")]


def _close(fd):
    try:
        os.close(fd)
    except OSError:
        pass


def _let_go(fd, number):
    _close(fd)
    _done_segments.append(number)


class Warm:
    """Memory files that results are written into again and again: fresh memory costs ten times the copy."""

    LIMIT = 64 << 20

    def __init__(self):
        self.lock = threading.Lock()
        self.free = {}
        self.busy = {}
        self.bytes = 0
        self.next = 0

    def take(self, size):
        with self.lock:
            for number, (fd, capacity) in self.free.items():
                if capacity >= size:
                    self.busy[number] = self.free.pop(number)
                    return number, fd
            if self.bytes + size > self.LIMIT:
                for number in list(self.free):
                    fd, capacity = self.free.pop(number)
                    self.bytes -= capacity
                    os.close(fd)
            if self.bytes + size > self.LIMIT:
                return None
            fd = os.memfd_create("fresco", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
            os.ftruncate(fd, size)
            fcntl.fcntl(fd, 1033, 0x0001 | 0x0002 | 0x0004)
            self.next += 1
            self.bytes += size
            self.busy[self.next] = (fd, size)
            return self.next, fd

    def done(self, number):
        with self.lock:
            entry = self.busy.pop(number, None)
            if entry is not None:
                self.free[number] = entry


class Outgoing:
    """Collects the numbers of one frame."""

    def __init__(self):
        self.pieces = []
        self.size = 0

    def add(self, data):
        offset = (self.size + 63) & ~63
        self.pieces.append((offset, data))
        self.size = offset + len(data)
        return offset

    def _write(self, fd):
        for offset, data in self.pieces:
            view = memoryview(data)
            while len(view):
                written = os.pwrite(fd, view, offset)
                offset += written
                view = view[written:]

    def descriptor(self):
        fd = os.memfd_create("fresco", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(fd, self.size)
        self._write(fd)
        fcntl.fcntl(fd, 1033, _fcntl_seals)
        return fd

    def file(self):
        fd, path = tempfile.mkstemp(prefix="fresco-")
        try:
            with os.fdopen(os.dup(fd), "r+b") as file:
                file.truncate(self.size)
                for offset, data in self.pieces:
                    file.seek(offset)
                    file.write(data)
        finally:
            os.close(fd)
        return path


class Waiting:
    def __init__(self):
        self.done = threading.Event()
        self.answer = None
        self.error = None


class Channel:
    def __init__(self, sock):
        self.sock = sock
        self.lock = threading.Lock()
        self.number = 0
        self.waiting = {}
        self.fds = []
        self.buffer = bytearray()
        self.on_call = None
        self.on_event = None
        self.warm = Warm()
        self.process = os.getpid()

    # Sending

    def _tell_done(self):
        """What the garbage collector found since the last message."""
        for queue, method, key in ((_done_segments, "segments", "done"), (_done_handles, "release", "handles")):
            counts = {}
            while queue:
                try:
                    number = queue.popleft()
                except IndexError:
                    break
                number, count = number if isinstance(number, tuple) else (number, 1)
                counts[number] = counts.get(number, 0) + count
            if counts:
                self._frame(EVENT, 0, {"m": method, "a": {key: [list(pair) for pair in counts.items()]}})

    def _send(self, kind, number, body, out=None):
        # Afterwards: this message may speak of what is let go of now.
        self._frame(kind, number, body, out)
        if _done_segments or _done_handles:
            self._tell_done()

    def _frame(self, kind, number, body, out=None):
        if os.getpid() != self.process:
            # A copy of the process that a pack made: only the first may speak.
            os._exit(1)
        fd = None
        owned = False
        if out is not None and out.size:
            if DESCRIPTORS:
                warm = self.warm.take(out.size)
                if warm is None:
                    fd, owned = out.descriptor(), True
                else:
                    body["warm"], fd = warm
                    out._write(fd)
            else:
                body["file"] = out.file()
            body["bytes"] = out.size
        try:
            data = _text(body).encode()
            if len(data) + 9 > LIMIT:
                if "warm" in body:
                    self.warm.done(body["warm"])
                raise WorkerError(f"a message of {len(data)} bytes is too large to send; the limit is {LIMIT}")
            frame = HEAD.pack(len(data) + 9, kind, number) + data
            with self.lock:
                if fd is None:
                    self.sock.sendall(frame)
                else:
                    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [fd]))]
                    sent = self.sock.sendmsg([frame], rights)
                    self.sock.sendall(memoryview(frame)[sent:])
        finally:
            if owned:
                os.close(fd)

    def event(self, method, **arguments):
        self._send(EVENT, 0, {"m": method, "a": arguments})

    def call(self, method, arguments, out=None):
        """Asks the engine and waits. Never on the thread that reads."""
        waiting = Waiting()
        with self.lock:
            self.number += 1
            number = self.number
            self.waiting[number] = waiting
        self._send(CALL, number, {"m": method, "a": arguments}, out)
        waiting.done.wait()
        if waiting.error is not None:
            raise _error_of(waiting.error)
        return waiting.answer

    def reply(self, number, value, out=None):
        self._send(REPLY, number, {"v": value}, out)

    def error(self, number, error):
        self._send(ERROR, number, {"e": error})

    # Receiving

    def _fill(self, wanted):
        while len(self.buffer) < wanted:
            if DESCRIPTORS:
                data, ancillary, _flags, _address = self.sock.recvmsg(1 << 20, socket.CMSG_LEN(64 * 4))
                for level, kind, content in ancillary:
                    if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                        numbers = array.array("i")
                        numbers.frombytes(content[: len(content) - len(content) % numbers.itemsize])
                        for fd in numbers:
                            os.set_inheritable(fd, False)
                            self.fds.append(fd)
            else:
                data = self.sock.recv(1 << 20)
            if not data:
                raise EOFError
            self.buffer += data

    def read(self):
        self._fill(HEAD.size)
        length, kind, number = HEAD.unpack_from(self.buffer)
        if length < 9 or length > LIMIT:
            raise EOFError
        self._fill(4 + length)
        body = json.loads(bytes(self.buffer[HEAD.size : 4 + length]))
        del self.buffer[: 4 + length]
        segments = {}
        size = body.get("bytes")
        if size:
            if "file" in body:
                fd = os.open(body["file"], os.O_RDWR | getattr(os, "O_BINARY", 0))
            else:
                fd = self.fds.pop(0)
            segments[None] = Segment(fd, size)
            os.close(fd)
            if "file" in body:
                try:
                    os.unlink(body["file"])
                except OSError:
                    pass
        for number_of, size in body.get("segments", ()):
            fd = self.fds.pop(0)
            if number_of in segments:
                _done_segments.append(number_of)
            else:
                segments[number_of] = Segment(fd, size, number_of)
            os.close(fd)
        return kind, number, body, segments

    def serve(self):
        """Reads until the engine is gone."""
        while True:
            try:
                kind, number, body, segment = self.read()
            except (EOFError, OSError, ValueError):
                return
            if kind in (REPLY, ERROR):
                waiting = self.waiting.pop(number, None)
                if waiting is not None:
                    if kind == REPLY:
                        waiting.answer = (body.get("v"), segment)
                    else:
                        waiting.error = body.get("e")
                    waiting.done.set()
                continue
            try:
                handler = self.on_call if kind == CALL else self.on_event
                handler(body.get("m"), body.get("a") or {}, number, segment)
            except Exception:
                traceback.print_exc()
                if kind == CALL:
                    self.error(number, {"type": "RuntimeError", "message": traceback.format_exc()})


def _error_of(error):
    """What the engine said, as an exception."""
    if not isinstance(error, dict):
        return WorkerError(str(error))
    if error.get("interrupted"):
        import comfy.model_management as management

        return management.InterruptProcessingException()
    if error.get("memory"):
        return MemoryError(error.get("message") or "out of memory")
    text = error.get("message") or error.get("type") or "the engine could not do it"
    kind = {"ValueError": ValueError, "TypeError": TypeError, "KeyError": KeyError, "FileNotFoundError": FileNotFoundError}
    return kind.get(error.get("type"), WorkerError)(text)
