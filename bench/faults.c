/* A file layer that fails, dies or keeps a log, for bench/faults.py: LD_PRELOAD, Linux with glibc.

   It sees what changes files below the folder EDGEMEM_FAULTS: writes, truncations, syncs, renames,
   removals, creations. Of those it can fail one with an errno (and all after it), or end the process
   before one. With a log it writes each as a record, after it was done, so that bench/faults.py can
   build what a power cut would have left. mmap is not seen: SQLite maps only its -shm, which no
   power cut leaves. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#define REAL(name) ((__typeof__(&name))real(#name))

static long step = 0, at = 0;      /* operations seen; the one to fail, 0 for none */
static int error = 0, sticky = 0;  /* its errno, 0 to die there; whether all after it fail too */
static int log_fd = -1;

static void *real(const char *name) { return dlsym(RTLD_NEXT, name); }

/* Begin anew: fail or die at an operation, and log to an open file (-1: none). */
void faults_arm(long at_, int error_, int sticky_, int log_fd_) {
    step = 0; at = at_; error = error_; sticky = sticky_; log_fd = log_fd_;
}
long faults_seen(void) { return step; }

/* The path below the folder, or NULL. */
static const char *below(const char *path) {
    const char *folder = getenv("EDGEMEM_FAULTS");
    size_t n = folder ? strlen(folder) : 0;
    return n && strncmp(path, folder, n) == 0 ? path + n : NULL;
}
static const char *of_fd(int fd, char *path) {
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t n = readlink(link, path, PATH_MAX - 1);
    if (n <= 0) return NULL;
    path[n] = 0;
    return strstr(path, " (deleted)") ? NULL : below(path);
}
static const char *of_path(const char *given, char *path) {
    if (given[0] != '/') {
        if (!getcwd(path, PATH_MAX / 2)) return NULL;
        size_t n = strlen(path);
        snprintf(path + n, PATH_MAX - n, "/%s", given);
        return below(path);
    }
    return below(given);
}

/* Count an operation; whether it is to fail now. */
static int fails(void) {
    long n = __atomic_add_fetch(&step, 1, __ATOMIC_SEQ_CST);
    if (!at || n < at || (n > at && !sticky)) return 0;
    if (!error) { kill(getpid(), SIGKILL); pause(); }
    errno = error;
    return 1;
}
static void record(char kind, const char *path, int64_t offset, const void *data, int64_t size) {
    if (log_fd < 0) return;
    int keep = errno;
    int64_t head[4] = {kind, (int64_t)strlen(path), offset, size};
    struct iovec parts[3] = {{head, sizeof head}, {(void *)path, strlen(path)}, {(void *)data, size}};
    if (REAL(writev)(log_fd, parts, size ? 3 : 2) < 0) abort();
    errno = keep;
}

static ssize_t written(int fd, const void *data, size_t size, off_t offset, int placed) {
    char path[PATH_MAX];
    const char *name = of_fd(fd, path);
    if (name && fails()) return -1;
    if (name && !placed) {
        struct stat now;
        int append = fcntl(fd, F_GETFL) & O_APPEND;
        offset = append && !fstat(fd, &now) ? now.st_size : lseek(fd, 0, SEEK_CUR);
    }
    ssize_t n = placed ? REAL(pwrite)(fd, data, size, offset) : REAL(write)(fd, data, size);
    if (name && n > 0) record('w', name, offset, data, n);
    return n;
}
ssize_t write(int fd, const void *data, size_t size) { return written(fd, data, size, 0, 0); }
ssize_t pwrite(int fd, const void *data, size_t size, off_t at) { return written(fd, data, size, at, 1); }
ssize_t pwrite64(int fd, const void *data, size_t size, off_t at) { return written(fd, data, size, at, 1); }
ssize_t writev(int fd, const struct iovec *parts, int count) {
    ssize_t all = 0;
    for (int i = 0; i < count; i++) {
        ssize_t n = write(fd, parts[i].iov_base, parts[i].iov_len);
        if (n < 0) return all ? all : n;
        all += n;
        if ((size_t)n < parts[i].iov_len) break;
    }
    return all;
}

static int truncated(int fd, off_t size) {
    char path[PATH_MAX];
    const char *name = of_fd(fd, path);
    if (name && fails()) return -1;
    int result = REAL(ftruncate)(fd, size);
    if (name && !result) record('t', name, size, "", 0);
    return result;
}
int ftruncate(int fd, off_t size) { return truncated(fd, size); }
int ftruncate64(int fd, off_t size) { return truncated(fd, size); }

static int synced(int fd, int data_only) {
    char path[PATH_MAX];
    const char *name = of_fd(fd, path);
    if (name && fails()) return -1;
    int result = data_only ? REAL(fdatasync)(fd) : REAL(fsync)(fd);
    if (name && !result) record('s', name, 0, "", 0);
    return result;
}
int fsync(int fd) { return synced(fd, 0); }
int fdatasync(int fd) { return synced(fd, 1); }

int rename(const char *from, const char *to) {
    char one[PATH_MAX], two[PATH_MAX];
    const char *old = of_path(from, one), *new = of_path(to, two);
    if (old && new && fails()) return -1;
    int result = REAL(rename)(from, to);
    if (old && new && !result) record('r', old, 0, new, (int64_t)strlen(new));
    return result;
}
int unlink(const char *given) {
    char path[PATH_MAX];
    const char *name = of_path(given, path);
    if (name && fails()) return -1;
    int result = REAL(unlink)(given);
    if (name && !result) record('u', name, 0, "", 0);
    return result;
}

static int opened(const char *which, const char *given, int flags, mode_t mode) {
    char path[PATH_MAX];
    const char *name = flags & (O_CREAT | O_TRUNC) ? of_path(given, path) : NULL;
    int made = name && (flags & O_CREAT) && access(given, F_OK) != 0;
    int emptied = name && !made && (flags & O_TRUNC);
    if ((made || emptied) && fails()) return -1;
    int fd = ((int (*)(const char *, int, ...))real(which))(given, flags, mode);
    if (fd >= 0 && made) record('c', name, 0, "", 0);
    if (fd >= 0 && emptied) record('t', name, 0, "", 0);
    return fd;
}
int open(const char *path, int flags, ...) {
    va_list more;
    va_start(more, flags);
    mode_t mode = flags & O_CREAT ? va_arg(more, mode_t) : 0;
    va_end(more);
    return opened("open", path, flags, mode);
}
int open64(const char *path, int flags, ...) {
    va_list more;
    va_start(more, flags);
    mode_t mode = flags & O_CREAT ? va_arg(more, mode_t) : 0;
    va_end(more);
    return opened("open64", path, flags, mode);
}
