/* Preloaded: appends what a process tree does to files below RECORD_ROOT to the file RECORD_LOG, in its order.

   A record is a header, the path, a second path or the data that was written. See power_cut.py, which replays it. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

struct header { uint32_t kind, pid, path, data; uint64_t offset; };

static void put(char kind, const char *path, const void *data, size_t size, uint64_t offset) {
    const char *root = getenv("RECORD_ROOT"), *log = getenv("RECORD_LOG");
    if (!root || !log || strncmp(path, root, strlen(root))) return;
    int kept = errno;
    struct header head = {(uint32_t)kind, (uint32_t)getpid(), (uint32_t)strlen(path), (uint32_t)size, offset};
    size_t length = sizeof head + head.path + size;
    char *record = malloc(length);
    memcpy(record, &head, sizeof head);
    memcpy(record + sizeof head, path, head.path);
    if (size) memcpy(record + sizeof head + head.path, data, size);
    int fd = syscall(SYS_openat, AT_FDCWD, log, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
    if (fd >= 0) {
        syscall(SYS_write, fd, record, length);
        syscall(SYS_close, fd);
    }
    free(record);
    errno = kept;
}

static int name_of(int fd, char *path) {
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t size = readlink(link, path, PATH_MAX - 1);
    if (size <= 0 || path[0] != '/') return 0;
    path[size] = 0;
    return 1;
}

static void put_fd(char kind, int fd, const void *data, size_t size, uint64_t offset) {
    char path[PATH_MAX];
    int kept = errno;
    if (getenv("RECORD_ROOT") && name_of(fd, path)) put(kind, path, data, size, offset);
    errno = kept;
}

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

ssize_t write(int fd, const void *data, size_t size) {
    ssize_t done = syscall(SYS_write, fd, data, size);
    if (done > 0) {
        off_t end = syscall(SYS_lseek, fd, 0, SEEK_CUR);
        if (end >= done) put_fd('W', fd, data, done, end - done);
    }
    return done;
}

ssize_t pwrite64(int fd, const void *data, size_t size, off64_t offset) {
    ssize_t done = syscall(SYS_pwrite64, fd, data, size, offset);
    if (done > 0) put_fd('W', fd, data, done, offset);
    return done;
}
ssize_t pwrite(int fd, const void *data, size_t size, off_t offset) { return pwrite64(fd, data, size, offset); }

int fsync(int fd) {
    int done = syscall(SYS_fsync, fd);
    if (!done) put_fd('S', fd, NULL, 0, 0);
    return done;
}
int fdatasync(int fd) {
    int done = syscall(SYS_fdatasync, fd);
    if (!done) put_fd('S', fd, NULL, 0, 0);
    return done;
}

int ftruncate64(int fd, off64_t size) {
    int done = syscall(SYS_ftruncate, fd, size);
    if (!done) put_fd('T', fd, NULL, 0, size);
    return done;
}
int ftruncate(int fd, off_t size) { return ftruncate64(fd, size); }

static int opened(int folder, const char *name, int flags, mode_t mode) {
    int fd = syscall(SYS_openat, folder, name, flags, mode);
    if (fd >= 0 && (flags & O_CREAT)) put_fd('C', fd, NULL, 0, 0);
    if (fd >= 0 && (flags & O_TRUNC)) put_fd('T', fd, NULL, 0, 0);
    return fd;
}
#define MODE mode_t mode = 0; if (flags & (O_CREAT | __O_TMPFILE)) { va_list rest; va_start(rest, flags); mode = va_arg(rest, mode_t); va_end(rest); }
int open(const char *name, int flags, ...) { MODE return opened(AT_FDCWD, name, flags, mode); }
int open64(const char *name, int flags, ...) { MODE return opened(AT_FDCWD, name, flags | O_LARGEFILE, mode); }
int openat(int folder, const char *name, int flags, ...) { MODE return opened(folder, name, flags, mode); }
int openat64(int folder, const char *name, int flags, ...) { MODE return opened(folder, name, flags | O_LARGEFILE, mode); }

static const char *absolute(const char *name, char *path) {
    if (name[0] == '/' || !getcwd(path, PATH_MAX)) return name;
    strncat(path, "/", PATH_MAX - strlen(path) - 1);
    strncat(path, name, PATH_MAX - strlen(path) - 1);
    return path;
}

int rename(const char *old, const char *new) {
    char from[PATH_MAX], to[PATH_MAX];
    int done = REAL(rename)(old, new);
    if (!done) {
        const char *target = absolute(new, to);
        put('R', absolute(old, from), target, strlen(target), 0);
    }
    return done;
}

int unlink(const char *name) {
    char path[PATH_MAX];
    int done = REAL(unlink)(name);
    if (!done) put('U', absolute(name, path), NULL, 0, 0);
    return done;
}

int mkdir(const char *name, mode_t mode) {
    char path[PATH_MAX];
    int done = REAL(mkdir)(name, mode);
    if (!done) put('M', absolute(name, path), NULL, 0, 0);
    return done;
}

pid_t fork(void) {
    const char *root = getenv("RECORD_ROOT");
    /* Before there is a child: what is not durable by now is not durable before it exists. */
    if (root) put('F', root, NULL, 0, 0);
    return REAL(fork)();
}
