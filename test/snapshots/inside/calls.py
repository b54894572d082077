"""Calls of the C library that Python has no words for."""
import ctypes
import os

libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
libc.shmat.restype = ctypes.c_void_p
libc.shmat.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_int]
libc.msgsnd.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
libc.msgrcv.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_long, ctypes.c_int]
libc.mq_open.argtypes = [ctypes.c_char_p, ctypes.c_int, ctypes.c_uint, ctypes.c_void_p]
libc.mq_send.argtypes = [ctypes.c_int, ctypes.c_char_p, ctypes.c_size_t, ctypes.c_uint]
libc.mq_receive.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p]

CLOCK_REALTIME, CLOCK_MONOTONIC, TFD_NONBLOCK, TFD_TIMER_ABSTIME = 0, 1, 0o4000, 1


def called(name, *words):
    """The result of a call, which must not fail."""
    result = getattr(libc, name)(*words)
    if result in (-1, ctypes.c_void_p(-1).value):
        error = ctypes.get_errno()
        raise OSError(error, f"{name}: {os.strerror(error)}")
    return result


class Timer:
    """timerfd(2)."""

    def __init__(self, clock=CLOCK_MONOTONIC):
        self.fd = called("timerfd_create", clock, TFD_NONBLOCK)

    def arm(self, seconds, every=0.0, absolute=False):
        parts = [value for time in (every, seconds) for value in (int(time), int(time % 1 * 10**9))]
        called("timerfd_settime", self.fd, TFD_TIMER_ABSTIME if absolute else 0, (ctypes.c_long * 4)(*parts), None)

    def fired(self):
        """How often since it was asked last."""
        try:
            return int.from_bytes(os.read(self.fd, 8), "little")
        except BlockingIOError:
            return 0
