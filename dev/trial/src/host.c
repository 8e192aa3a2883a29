/* The wall clock of a machine of the trial, and its threads. The conductor writes a page: an offset that is added to
   the kernel's wall clock, and whether the kernel refuses further threads. The library is loaded before the C library
   (LD_PRELOAD), so every process of the machine reads the clock and starts threads through these functions. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static const int64_t SECOND_NS = 1000000000;

struct page {
	int64_t clock_offset_ns;
	int64_t refuses_threads;
};

static const volatile struct page *page;

__attribute__((constructor)) static void open_page(void)
{
	const char *path = getenv("TRIAL_HOST");
	int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
	if (file < 0)
		return;
	void *mapped = mmap(NULL, sizeof *page, PROT_READ, MAP_SHARED, file, 0);
	close(file);
	if (mapped != MAP_FAILED)
		page = mapped;
}

int clock_gettime(clockid_t clock, struct timespec *time)
{
	int failed = (int)syscall(SYS_clock_gettime, clock, time);
	if (failed || clock != CLOCK_REALTIME || !page)
		return failed;
	int64_t now_ns = time->tv_sec * SECOND_NS + time->tv_nsec + page->clock_offset_ns;
	time->tv_sec = now_ns / SECOND_NS;
	time->tv_nsec = now_ns % SECOND_NS;
	return 0;
}

typedef int create(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *);

int pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*start)(void *), void *argument)
{
	if (page && page->refuses_threads)
		return EAGAIN;
	return ((create *)dlsym(RTLD_NEXT, "pthread_create"))(thread, attributes, start, argument);
}
