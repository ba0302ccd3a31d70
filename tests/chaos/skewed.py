"""Clocks of a lab's hosts that are wrong: one clock ticks for all hosts, and programs see another.

The wall clock alone is wrong. What measures spans is monotonic, and no two hosts have the same zero
there anyway. libfaketime would do this, but with it `time.sleep` of Python fails.
"""

import shutil
import subprocess
from pathlib import Path

_SOURCE = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <sys/time.h>
#include <time.h>

int clock_gettime(clockid_t clock, struct timespec *now)
{
    static int (*real)(clockid_t, struct timespec *);
    const char *skew = getenv("SKEW_SECONDS");
    if (!real)
        real = dlsym(RTLD_NEXT, "clock_gettime");
    int failed = real(clock, now);
    if (!failed && skew && clock == CLOCK_REALTIME)
        now->tv_sec += atol(skew);
    return failed;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone)
{
    struct timespec precise;
    int failed = clock_gettime(CLOCK_REALTIME, &precise);
    (void)zone;
    now->tv_sec = precise.tv_sec;
    now->tv_usec = precise.tv_nsec / 1000;
    return failed;
}

time_t time(time_t *now)
{
    struct timespec precise;
    clock_gettime(CLOCK_REALTIME, &precise);
    if (now)
        *now = precise.tv_sec;
    return precise.tv_sec;
}
"""


def can_skew() -> bool:
    """Whether this machine has a C compiler, which this needs."""
    return shutil.which("cc") is not None


def skewed(folder: Path, seconds: int) -> dict[str, str]:
    """Return the environment of a program whose clock is so many seconds ahead."""
    library = folder / "skew.so"
    if not library.exists():
        command = ["cc", "-shared", "-fPIC", "-O1", "-x", "c", "-", "-ldl", "-o", str(library)]
        subprocess.run(command, input=_SOURCE, text=True, check=True)
    return {"LD_PRELOAD": str(library), "SKEW_SECONDS": str(seconds)}
