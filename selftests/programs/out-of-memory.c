// SPDX-License-Identifier: GPL-2.0
/*
 * A program that has no memory left creates objects.
 *
 *     out-of-memory DEVICE GID_INDEX
 *
 * Takes all memory that RLIMIT_AS allows, then creates an object of each kind, and prints a line
 * "KIND ERRNO" for each. Gives the memory back, and creates them all.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <infiniband/verbs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>

#define KINDS 9

static struct ibv_device *device;
static struct ibv_context *context;
static struct ibv_pd *pd;
static struct ibv_cq *cq;
static struct ibv_ah_attr address;
static char memory[4096];

static void *make(int kind)
{
	struct ibv_srq_init_attr srq = { .attr = { .max_wr = 16, .max_sge = 1 } };
	struct ibv_qp_init_attr qp = {
		.send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC,
		.cap = { .max_send_wr = 16, .max_recv_wr = 16, .max_send_sge = 1, .max_recv_sge = 1 },
	};
	struct ibv_cq_init_attr_ex cq_ex = { .cqe = 16 };
	struct ibv_xrcd_init_attr xrcd = {
		.comp_mask = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS, .fd = -1, .oflags = O_CREAT,
	};

	switch (kind) {
	case 0: return ibv_alloc_pd(context);
	case 1: return ibv_reg_mr(pd, memory, sizeof(memory), IBV_ACCESS_LOCAL_WRITE);
	case 2: return ibv_alloc_mw(pd, IBV_MW_TYPE_2);
	case 3: return ibv_create_cq(context, 16, NULL, NULL, 0);
	case 4: return ibv_create_cq_ex(context, &cq_ex);
	case 5: return ibv_create_srq(pd, &srq);
	case 6: return ibv_create_qp(pd, &qp);
	case 7: return ibv_create_ah(pd, &address);
	default: return ibv_open_xrcd(context, &xrcd);
	}
}

static const char *const names[KINDS] = {
	"alloc_pd", "reg_mr", "alloc_mw", "create_cq", "create_cq_ex", "create_srq", "create_qp",
	"create_ah", "open_xrcd",
};

/* Takes the rest of the address space and of the heap. Returns a list of the pieces. */
static void **take(void)
{
	void **last = NULL;

	/* malloc() keeps lists of free pieces of 16, 32, 48, ... bytes. */
	for (size_t size = 1 << 20; size >= 16; size = size > 4096 ? size / 2 : size - 16) {
		void **piece;

		while ((piece = malloc(size))) {
			*piece = last;
			last = piece;
		}
	}
	return last;
}

static void give_back(void **last)
{
	while (last) {
		void **before = *last;

		free(last);
		last = before;
	}
}

int main(int argc, char **argv)
{
	static char output[4096];
	struct rlimit limit = { 32 << 20, RLIM_INFINITY };
	int errors[KINDS + 1];
	struct ibv_device **devices = ibv_get_device_list(NULL);
	void **taken;

	if (argc != 3 || !devices)
		return 2;
	for (; *devices && strcmp(ibv_get_device_name(*devices), argv[1]); devices++)
		;
	device = *devices;
	context = device ? ibv_open_device(device) : NULL;
	pd = context ? ibv_alloc_pd(context) : NULL;
	cq = pd ? ibv_create_cq(context, 16, NULL, NULL, 0) : NULL;
	if (!cq || ibv_query_gid(context, 1, atoi(argv[2]), &address.grh.dgid))
		return 2;
	address.is_global = 1;
	address.port_num = 1;
	address.grh.sgid_index = atoi(argv[2]);
	/* stdio must not allocate later. */
	setvbuf(stdout, output, _IOFBF, sizeof(output));
	if (setrlimit(RLIMIT_AS, &limit))
		return 2;

	taken = take();
	for (int kind = 0; kind < KINDS; kind++) {
		errno = 0;
		errors[kind] = make(kind) ? 0 : errno;
	}
	errno = 0;
	errors[KINDS] = ibv_open_device(device) ? 0 : errno;
	give_back(taken);

	for (int kind = 0; kind <= KINDS; kind++)
		printf("%s %d\n", kind < KINDS ? names[kind] : "open_device", errors[kind]);
	for (int kind = 0; kind < KINDS; kind++)
		if (!make(kind)) {
			printf("%s fails with memory, too: %d\n", names[kind], errno);
			return 1;
		}
	return 0;
}
