// SPDX-License-Identifier: GPL-2.0
/*
 * A gettimeofday() whose clock gains a second with each call, for LD_PRELOAD.
 *
 * For each result that it prints, perftest compares gettimeofday() with the CPU's cycle counter for
 * 0.22 s of CPU time (get_clock.c). With this clock it stops comparing at once, and prints a wrong
 * speed. Tests that ignore speeds use it.
 */
#include <stdatomic.h>
#include <sys/time.h>

static atomic_long calls;

int gettimeofday(struct timeval *restrict now, void *restrict zone)
{
	(void)zone;
	now->tv_sec = atomic_fetch_add(&calls, 1);
	now->tv_usec = 0;
	return 0;
}
