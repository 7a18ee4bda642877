// SPDX-License-Identifier: GPL-2.0
/*
 * Binds memory windows while another thread deallocates them, and checks that the region that they
 * were bound to can be deregistered afterwards.
 *
 *     bind-race DEVICE GID_INDEX SECONDS
 *
 * One thread allocates and deallocates a type 1 window, two threads bind the window with the
 * current key to one region, and one thread interrupts the CPUs of the others. The program prints
 * the number of operations as a line of JSON, and exits with status 1 if a call fails unexpectedly.
 */
#include "common.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <sys/mman.h>
#include <unistd.h>

#define LIST 64
#define PAGE 4096

static struct ibv_pd *pd;
static struct ibv_mr *region;
static union ibv_gid gid;
static int gid_index;

static atomic_bool stop;
/* The key of the current window, or of the last one. */
static atomic_uint window_key;

struct counts {
	unsigned long windows, lists, resets, interrupts;
};

static void *allocate(void *argument)
{
	struct counts *counts = argument;

	while (!stop) {
		struct ibv_mw *window = must("ibv_alloc_mw", ibv_alloc_mw(pd, IBV_MW_TYPE_1));

		window_key = window->rkey;
		check("ibv_dealloc_mw", ibv_dealloc_mw(window));
		counts->windows++;
	}
	return NULL;
}

/* Removes a right to a page, for which the kernel interrupts each CPU that runs this program. */
static void *interrupt(void *argument)
{
	struct counts *counts = argument;
	char *page = must("aligned_alloc", aligned_alloc(PAGE, PAGE));

	while (!stop) {
		*page = 1;
		if (mprotect(page, PAGE, PROT_READ) || mprotect(page, PAGE, PROT_READ | PROT_WRITE))
			fail("mprotect", errno);
		counts->interrupts++;
	}
	return NULL;
}

static void *bind_windows(void *argument)
{
	struct counts *counts = argument;
	struct ibv_cq *cq = must("ibv_create_cq", ibv_create_cq(pd->context, 2 * LIST, NULL, NULL, 0));
	struct ibv_qp_init_attr init = {
		.send_cq = cq,
		.recv_cq = cq,
		.cap = { .max_send_wr = LIST, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1 },
		.qp_type = IBV_QPT_RC,
	};
	struct ibv_qp *qp = must("ibv_create_qp", ibv_create_qp(pd, &init));
	/* Declared as type 2 so that the provider posts it in a list; the kernel knows the real type. */
	struct ibv_mw window = { .context = pd->context, .pd = pd, .type = IBV_MW_TYPE_2 };
	struct ibv_send_wr list[LIST] = {};

	for (int i = 0; i < LIST; i++)
		list[i] = (struct ibv_send_wr){
			.next = i + 1 < LIST ? &list[i + 1] : NULL,
			.opcode = IBV_WR_BIND_MW,
			.send_flags = IBV_SEND_SIGNALED,
			.bind_mw = {
				.mw = &window,
				.bind_info = {
					.mr = region,
					.addr = (uintptr_t)region->addr,
					.length = PAGE,
					.mw_access_flags = IBV_ACCESS_REMOTE_READ,
				},
			},
		};
	connect_to_itself(qp, gid, gid_index, IBV_MTU_1024, 0);
	while (!stop) {
		struct ibv_send_wr *bad;
		bool failed = false;

		window.rkey = window_key;
		for (int i = 0; i < LIST; i++)
			list[i].bind_mw.rkey = window.rkey;
		check("ibv_post_send", ibv_post_send(qp, list, &bad));
		for (int done = 0; done < LIST;) {
			struct ibv_wc found[LIST];
			int count = ibv_poll_cq(cq, LIST, found);

			if (count < 0)
				fail("ibv_poll_cq", EIO);
			for (int i = 0; i < count; i++)
				failed |= found[i].status != IBV_WC_SUCCESS;
			done += count;
		}
		counts->lists++;
		if (failed) {
			struct ibv_qp_attr reset = { .qp_state = IBV_QPS_RESET };

			check("RESET", ibv_modify_qp(qp, &reset, IBV_QP_STATE));
			connect_to_itself(qp, gid, gid_index, IBV_MTU_1024, 0);
			counts->resets++;
		}
	}
	check("ibv_destroy_qp", ibv_destroy_qp(qp));
	check("ibv_destroy_cq", ibv_destroy_cq(cq));
	return NULL;
}

static struct ibv_context *open_device(const char *name)
{
	struct ibv_device **list = must("ibv_get_device_list", ibv_get_device_list(NULL));

	for (int i = 0; list[i]; i++)
		if (!strcmp(ibv_get_device_name(list[i]), name))
			return must("ibv_open_device", ibv_open_device(list[i]));
	fail(name, ENODEV);
	return NULL;
}

int main(int argc, char **argv)
{
	static void *(*const bodies[])(void *) = { allocate, bind_windows, bind_windows, interrupt };
	pthread_t threads[4];
	struct counts counts[4] = {};

	if (argc != 4) {
		fputs("usage: bind-race DEVICE GID_INDEX SECONDS\n", stderr);
		return 2;
	}
	struct ibv_context *context = open_device(argv[1]);

	gid_index = atoi(argv[2]);
	check("ibv_query_gid", ibv_query_gid(context, 1, gid_index, &gid));
	pd = must("ibv_alloc_pd", ibv_alloc_pd(context));
	region = must("ibv_reg_mr", ibv_reg_mr(pd, must("aligned_alloc", aligned_alloc(PAGE, PAGE)), PAGE,
					       IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_MW_BIND));
	for (int i = 0; i < 4; i++)
		check("pthread_create", pthread_create(&threads[i], NULL, bodies[i], &counts[i]));
	sleep(atoi(argv[3]));
	stop = true;
	for (int i = 0; i < 4; i++)
		pthread_join(threads[i], NULL);
	printf("{\"windows\": %lu, \"lists\": %lu, \"resets\": %lu, \"interrupts\": %lu}\n", counts[0].windows,
	       counts[1].lists + counts[2].lists, counts[1].resets + counts[2].resets, counts[3].interrupts);
	fflush(stdout);
	/* No window is left, so nothing holds the region. */
	check("ibv_dereg_mr of the region", ibv_dereg_mr(region));
	check("ibv_dealloc_pd", ibv_dealloc_pd(pd));
	check("ibv_close_device", ibv_close_device(context));
	return 0;
}
