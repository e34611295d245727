/* A wall clock that is wrong by OFFSET_S seconds for every program that is loaded with this (host.py, set_clock).

   No namespace has a wall clock of its own. Debian's libfaketime (0.9.10) does not do: it shifts the monotonic clock as
   well, and Python's Event.wait hangs; told not to, it makes every time.sleep fail with EINVAL.

   Who asks for the time is given the wrong one, who waits until a wrong time waits as long as it meant to. Times of files
   come from the kernel, and stay right; so do programs that are linked statically. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <linux/futex.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdarg.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

/* A name that is not found would be an error, whose text is allocated; and an allocator that is preloaded too (Ray's
   jemalloc) makes system calls while it starts. So only names that are there are looked up. */
#define REAL(name) ({ static __typeof__(&name) real; if (!real) real = (__typeof__(&name))dlsym(RTLD_NEXT, #name); real; })

/* A deadline as the kernel needs it. No machine has been up for 30 years: what is later than that is a wall clock's. */
static struct timespec deadline(const struct timespec *wanted) {
    struct timespec until = *wanted;
    if (until.tv_sec > 1000000000 + (OFFSET_S)) until.tv_sec -= (OFFSET_S);
    return until;
}

int clock_gettime(clockid_t clock, struct timespec *now) {
    int failed = REAL(clock_gettime)(clock, now);
    if (!failed && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) now->tv_sec += (OFFSET_S);
    return failed;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    int failed = REAL(gettimeofday)(now, zone);
    if (!failed) now->tv_sec += (OFFSET_S);
    return failed;
}

time_t time(time_t *result) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (result) *result = now.tv_sec;
    return now.tv_sec;
}

int timespec_get(struct timespec *now, int base) {
    return base == TIME_UTC && !clock_gettime(CLOCK_REALTIME, now) ? base : 0;
}

int clock_nanosleep(clockid_t clock, int flags, const struct timespec *wanted, struct timespec *left) {
    struct timespec until = flags & TIMER_ABSTIME ? deadline(wanted) : *wanted;
    return REAL(clock_nanosleep)(clock, flags, &until, left);
}

int pthread_cond_timedwait(pthread_cond_t *restrict condition, pthread_mutex_t *restrict mutex,
                           const struct timespec *restrict wanted) {
    static __typeof__(&pthread_cond_timedwait) real; /* without its version, glibc may hand out that of before 2003 */
    if (!real) real = (__typeof__(real))dlvsym(RTLD_NEXT, "pthread_cond_timedwait", "GLIBC_2.3.2");
    if (!real) real = (__typeof__(real))dlsym(RTLD_NEXT, "pthread_cond_timedwait"); /* other processors have one */
    struct timespec until = deadline(wanted);
    return real(condition, mutex, &until);
}

int pthread_cond_clockwait(pthread_cond_t *restrict condition, pthread_mutex_t *restrict mutex, clockid_t clock,
                           const struct timespec *restrict wanted) {
    struct timespec until = deadline(wanted);
    return REAL(pthread_cond_clockwait)(condition, mutex, clock, &until);
}

int pthread_mutex_timedlock(pthread_mutex_t *restrict mutex, const struct timespec *restrict wanted) {
    struct timespec until = deadline(wanted);
    return REAL(pthread_mutex_timedlock)(mutex, &until);
}

int sem_timedwait(sem_t *restrict semaphore, const struct timespec *restrict wanted) {
    struct timespec until = deadline(wanted);
    return REAL(sem_timedwait)(semaphore, &until);
}

int sem_clockwait(sem_t *restrict semaphore, clockid_t clock, const struct timespec *restrict wanted) {
    struct timespec until = deadline(wanted);
    return REAL(sem_clockwait)(semaphore, clock, &until);
}

long syscall(long number, ...) { /* Abseil, and with it Ray and gRPC, waits by futexes of its own. */
    long a[6];
    va_list arguments;
    va_start(arguments, number);
    for (int i = 0; i < 6; i++) a[i] = va_arg(arguments, long);
    va_end(arguments);
    struct timespec until;
    if (number == SYS_futex && (a[1] & FUTEX_CMD_MASK) == FUTEX_WAIT_BITSET && a[3]) {
        until = deadline((const struct timespec *)a[3]);
        a[3] = (long)&until;
    }
    return REAL(syscall)(number, a[0], a[1], a[2], a[3], a[4], a[5]);
}
