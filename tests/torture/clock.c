#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <time.h>
#include <sys/time.h>
/* CLOCK_STEPS: seconds, added in turn at each call of the wall clock, e.g. "0,-86400,31536000". */
static long steps[16]; static int n = -1; static unsigned calls;
static long step(void) {
  if (n < 0) { n = 0; char *t = getenv("CLOCK_STEPS"); while (t && *t && n < 16) { steps[n++] = strtol(t, &t, 10); if (*t == ',') t++; } }
  return n ? steps[__sync_fetch_and_add(&calls, 1) % n] : 0;
}
int clock_gettime(clockid_t id, struct timespec *ts) {
  static int (*real)(clockid_t, struct timespec *);
  if (!real) real = dlsym(RTLD_NEXT, "clock_gettime");
  int r = real(id, ts);
  if (!r && id == CLOCK_REALTIME) ts->tv_sec += step();
  return r;
}
int gettimeofday(struct timeval *tv, void *tz) {
  struct timespec ts; clock_gettime(CLOCK_REALTIME, &ts);
  if (tv) { tv->tv_sec = ts.tv_sec; tv->tv_usec = ts.tv_nsec / 1000; }
  return 0;
}
time_t time(time_t *t) { struct timespec ts; clock_gettime(CLOCK_REALTIME, &ts); if (t) *t = ts.tv_sec; return ts.tv_sec; }
