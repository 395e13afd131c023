#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdlib.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>
#include <sys/stat.h>
/* DELAY_MS: most milliseconds that a call waits, before and after it does its work. */
static unsigned seed; static int most = -1;
static void wait_some(void) {
  if (most < 0) { char *t = getenv("DELAY_MS"); most = t ? atoi(t) : 0; char *s = getenv("DELAY_SEED"); seed = s ? atoi(s) : getpid(); }
  if (most > 0) usleep(1000 * (rand_r(&seed) % (most + 1)));
}
#define REAL(name) static typeof(name) *real; if (!real) real = dlsym(RTLD_NEXT, #name)
#define WITH(call) wait_some(); int r = call; wait_some(); return r
int rename(const char *a, const char *b) { REAL(rename); WITH(real(a, b)); }
int renameat(int d, const char *a, int e, const char *b) { REAL(renameat); WITH(real(d, a, e, b)); }
int renameat2(int d, const char *a, int e, const char *b, unsigned f) { REAL(renameat2); WITH(real(d, a, e, b, f)); }
int link(const char *a, const char *b) { REAL(link); WITH(real(a, b)); }
int linkat(int d, const char *a, int e, const char *b, int f) { REAL(linkat); WITH(real(d, a, e, b, f)); }
int unlink(const char *a) { REAL(unlink); WITH(real(a)); }
int fsync(int d) { REAL(fsync); WITH(real(d)); }
int fdatasync(int d) { REAL(fdatasync); WITH(real(d)); }
int mkdir(const char *a, mode_t m) { REAL(mkdir); WITH(real(a, m)); }
int rmdir(const char *a) { REAL(rmdir); WITH(real(a)); }
int ftruncate(int d, off_t n) { REAL(ftruncate); WITH(real(d, n)); }
static int writes(int f) { return f & (O_WRONLY | O_RDWR | O_CREAT); }
int open(const char *p, int f, ...) {
  static int (*real)(const char *, int, ...); if (!real) real = dlsym(RTLD_NEXT, "open");
  va_list v; va_start(v, f); int m = va_arg(v, int); va_end(v);
  if (!writes(f)) return real(p, f, m);
  WITH(real(p, f, m));
}
int open64(const char *p, int f, ...) {
  static int (*real)(const char *, int, ...); if (!real) real = dlsym(RTLD_NEXT, "open64");
  va_list v; va_start(v, f); int m = va_arg(v, int); va_end(v);
  if (!writes(f)) return real(p, f, m);
  WITH(real(p, f, m));
}
