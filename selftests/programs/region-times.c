// SPDX-License-Identifier: GPL-2.0
/*
 * Measures how long programs wait for the end of their memory regions.
 *
 *     region-times DEVICE [REGIONS]
 *
 * Prints a line of JSON with times in microseconds: medians and 90th percentiles of 200 calls of
 * ibv_reg_mr() and ibv_dereg_mr() with a page, alone and beside two programs that keep two CPUs
 * busy; and the time from SIGKILL to the end of a program with REGIONS (10,000) regions, alone and
 * beside the two.
 */
#include "common.h"

#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define CALLS 200
#define BUSY 2
#define PAGE 4096

static const char *device;

static double now(void)
{
	struct timespec time;

	clock_gettime(CLOCK_MONOTONIC, &time);
	return time.tv_sec * 1e6 + time.tv_nsec / 1e3;
}

static struct ibv_pd *open_device(void)
{
	struct ibv_device **list = must("ibv_get_device_list", ibv_get_device_list(NULL));

	for (int i = 0; list[i]; i++)
		if (!strcmp(ibv_get_device_name(list[i]), device))
			return must("ibv_alloc_pd", ibv_alloc_pd(must("ibv_open_device", ibv_open_device(list[i]))));
	fail(device, ENODEV);
	return NULL;
}

static void *pages(size_t count)
{
	void *memory = mmap(NULL, count * PAGE, PROT_READ | PROT_WRITE,
			    MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);

	if (memory == MAP_FAILED)
		fail("mmap", errno);
	return memory;
}

static struct ibv_mr *registered(struct ibv_pd *pd, void *page)
{
	return must("ibv_reg_mr", ibv_reg_mr(pd, page, PAGE, IBV_ACCESS_LOCAL_WRITE));
}

static int compare(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

static void print_times(const char *name, const char *beside, double *times)
{
	qsort(times, CALLS, sizeof(*times), compare);
	printf("\"%s%s\": [%.1f, %.1f], ", name, beside, times[CALLS / 2], times[CALLS * 9 / 10]);
}

static void calls(struct ibv_pd *pd, const char *beside)
{
	static double begin[CALLS], end[CALLS];
	void *page = pages(1);

	/* The first one is a warm-up. */
	for (int i = -1; i < CALLS; i++) {
		double first = now();
		struct ibv_mr *mr = registered(pd, page);
		double second = now();

		if (ibv_dereg_mr(mr))
			fail("ibv_dereg_mr", errno);
		if (i >= 0) {
			begin[i] = second - first;
			end[i] = now() - second;
		}
	}
	print_times("register", beside, begin);
	print_times("deregister", beside, end);
}

/* Starts a child that ends with this program. Returns 0 in the child. */
static pid_t start(void)
{
	pid_t parent = getpid(), child = fork();

	if (child < 0)
		fail("fork", errno);
	if (!child && (prctl(PR_SET_PDEATHSIG, SIGKILL) || getppid() != parent))
		exit(1);
	return child;
}

static void killed(long regions, const char *beside)
{
	int ready[2], status;
	char byte;

	if (pipe(ready))
		fail("pipe", errno);
	pid_t child = start();

	if (!child) {
		struct ibv_pd *pd = open_device();
		char *memory = pages(regions);

		for (long i = 0; i < regions; i++)
			registered(pd, memory + i * PAGE);
		if (write(ready[1], "", 1) != 1)
			fail("write", errno);
		pause();
	}
	close(ready[1]);
	if (read(ready[0], &byte, 1) != 1)
		fail("the program with the regions", errno);
	double begin = now();

	kill(child, SIGKILL);
	waitpid(child, &status, 0);
	printf("\"killed%s\": %.0f", beside, now() - begin);
	close(ready[0]);
}

int main(int argc, char **argv)
{
	if (argc < 2) {
		fputs("usage: region-times DEVICE [REGIONS]\n", stderr);
		return 2;
	}
	device = argv[1];
	long regions = argc > 2 ? atol(argv[2]) : 10000;
	struct ibv_pd *pd = open_device();

	printf("{");
	calls(pd, "");
	killed(regions, "");
	printf(", ");
	/* Not started with the buffered output. */
	fflush(stdout);
	for (int i = 0; i < BUSY; i++)
		if (!start())
			for (;;)
				;
	calls(pd, " busy");
	killed(regions, " busy");
	printf("}\n");
	return 0;
}
