// SPDX-License-Identifier: GPL-2.0
/*
 * Uses a null memory region (ibv_alloc_null_mr(3)) in each place where a work request has a data
 * segment, in the connection of a queue pair to itself.
 *
 *     null-region DEVICE GID_INDEX PATH_MTU
 *
 * Reads must find zeroes, and writes must be discarded. The program prints "ok", or exits with
 * status 1 if a call fails or finds other data.
 */
#include "common.h"

/* Bytes of each half of the buffer: several packets of any MTU, of odd length. */
#define HALF 9001
#define ACCESS (IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC)

static struct ibv_pd *pd;
static struct ibv_cq *cq;
static struct ibv_qp *qp;
static struct ibv_mr *region, *null;
static _Alignas(64) unsigned char buffer[2 * HALF];
/* The step that the program is at, for messages. */
static const char *step = "setting up";

static void require(int condition, const char *what)
{
	if (!condition) {
		fprintf(stderr, "null-region: %s: %s\n", step, what);
		exit(1);
	}
}

/* Fills the buffer with bytes that are not zero. */
static void begin(const char *name)
{
	step = name;
	for (size_t i = 0; i < sizeof(buffer); i++)
		buffer[i] = 1 + i % 251;
}

/* Checks that a range of the buffer has its bytes from begin(). */
static void untouched(size_t from, size_t to)
{
	for (; from < to; from++)
		require(buffer[from] == 1 + from % 251, "a byte outside changed");
}

static void zeroes(size_t from, size_t to)
{
	for (; from < to; from++)
		require(!buffer[from], "a byte is not zero");
}

static struct ibv_sge nowhere(uint64_t address, uint32_t length)
{
	return (struct ibv_sge){ .addr = address, .length = length, .lkey = null->lkey };
}

static struct ibv_sge here(size_t offset, uint32_t length)
{
	return (struct ibv_sge){ .addr = (uintptr_t)buffer + offset, .length = length, .lkey = region->lkey };
}

/* Waits for a completion of each kind that is expected. */
static void completed(int count, enum ibv_wc_status status)
{
	while (count) {
		struct ibv_wc wc;
		int found = ibv_poll_cq(cq, 1, &wc);

		require(found >= 0, "ibv_poll_cq");
		if (!found)
			continue;
		if (wc.status != status) {
			fprintf(stderr, "null-region: %s: %s\n", step, ibv_wc_status_str(wc.status));
			exit(1);
		}
		count--;
	}
}

static void receive(struct ibv_sge *list, int count)
{
	struct ibv_recv_wr *bad, wr = { .sg_list = list, .num_sge = count };

	check("ibv_post_recv", ibv_post_recv(qp, &wr, &bad));
}

static void send_wr(struct ibv_send_wr wr, struct ibv_sge *list, int count)
{
	struct ibv_send_wr *bad;

	wr.sg_list = list;
	wr.num_sge = count;
	wr.send_flags = IBV_SEND_SIGNALED;
	check("ibv_post_send", ibv_post_send(qp, &wr, &bad));
}

static struct ibv_send_wr remote(enum ibv_wr_opcode opcode, size_t offset, uint32_t rkey)
{
	struct ibv_send_wr wr = { .opcode = opcode };

	wr.wr.rdma.remote_addr = (uintptr_t)buffer + offset;
	wr.wr.rdma.rkey = rkey;
	return wr;
}

int main(int argc, char **argv)
{
	struct ibv_device **devices = must("ibv_get_device_list", ibv_get_device_list(NULL));
	struct ibv_context *context = NULL;
	union ibv_gid gid;
	struct ibv_sge list[3];
	uint64_t word;

	if (argc != 4) {
		fprintf(stderr, "usage: null-region DEVICE GID_INDEX PATH_MTU\n");
		return 2;
	}
	for (int i = 0; devices[i]; i++)
		if (!strcmp(ibv_get_device_name(devices[i]), argv[1]))
			context = must("ibv_open_device", ibv_open_device(devices[i]));
	require(!!context, "there is no such device");
	int gid_index = atoi(argv[2]), mtu = IBV_MTU_256;

	for (int bytes = 256; bytes < atoi(argv[3]); bytes *= 2)
		mtu++;
	check("ibv_query_gid", ibv_query_gid(context, 1, gid_index, &gid));
	pd = must("ibv_alloc_pd", ibv_alloc_pd(context));
	region = must("ibv_reg_mr", ibv_reg_mr(pd, buffer, sizeof(buffer), ACCESS));
	null = must("ibv_alloc_null_mr", ibv_alloc_null_mr(pd));
	require(null->length == SIZE_MAX && !null->addr && null->pd == pd, "the region is not described");
	cq = must("ibv_create_cq", ibv_create_cq(context, 16, NULL, NULL, 0));
	struct ibv_qp_init_attr init = {
		.send_cq = cq,
		.recv_cq = cq,
		.cap = { .max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 3, .max_recv_sge = 3 },
		.qp_type = IBV_QPT_RC,
	};
	qp = must("ibv_create_qp", ibv_create_qp(pd, &init));
	connect_to_itself(qp, gid, gid_index, mtu, ACCESS);

	begin("SEND from the middle of a list");
	list[0] = here(HALF, HALF);
	receive(list, 1);
	list[0] = here(0, 100);
	list[1] = nowhere(12345, HALF - 200);
	list[2] = here(HALF - 100, 100);
	send_wr((struct ibv_send_wr){ .opcode = IBV_WR_SEND }, list, 3);
	completed(2, IBV_WC_SUCCESS);
	untouched(0, HALF);
	require(!memcmp(buffer + HALF, buffer, 100), "the first bytes are missing");
	zeroes(HALF + 100, 2 * HALF - 100);
	require(!memcmp(buffer + 2 * HALF - 100, buffer + HALF - 100, 100), "the last bytes are missing");

	begin("receive with a hole");
	list[0] = here(HALF, 50);
	list[1] = nowhere(0, HALF - 150);
	list[2] = here(HALF + 50, 100);
	receive(list, 3);
	list[0] = here(0, HALF);
	send_wr((struct ibv_send_wr){ .opcode = IBV_WR_SEND }, list, 1);
	completed(2, IBV_WC_SUCCESS);
	require(!memcmp(buffer + HALF, buffer, 50), "the first bytes are missing");
	require(!memcmp(buffer + HALF + 50, buffer + HALF - 100, 100), "the last bytes are missing");
	untouched(HALF + 150, 2 * HALF);

	begin("WRITE");
	list[0] = nowhere(UINT64_MAX - HALF, HALF);
	send_wr(remote(IBV_WR_RDMA_WRITE, 0, region->rkey), list, 1);
	completed(1, IBV_WC_SUCCESS);
	zeroes(0, HALF);
	untouched(HALF, 2 * HALF);

	begin("READ");
	list[0] = nowhere(1, HALF - 7);
	list[1] = here(HALF, 7);
	send_wr(remote(IBV_WR_RDMA_READ, 0, region->rkey), list, 2);
	completed(1, IBV_WC_SUCCESS);
	untouched(0, HALF);
	require(!memcmp(buffer + HALF, buffer + HALF - 7, 7), "the last bytes are missing");
	untouched(HALF + 7, 2 * HALF);

	begin("FETCH_ADD");
	memset(buffer, 0, 8);
	struct ibv_send_wr atomic = { .opcode = IBV_WR_ATOMIC_FETCH_AND_ADD };

	atomic.wr.atomic.remote_addr = (uintptr_t)buffer;
	atomic.wr.atomic.rkey = region->rkey;
	atomic.wr.atomic.compare_add = 42;
	list[0] = nowhere(8, 8);
	send_wr(atomic, list, 1);
	completed(1, IBV_WC_SUCCESS);
	memcpy(&word, buffer, 8);
	require(word == 42, "the sum is wrong");

	begin("any address");
	for (int i = 0; i < 64; i++) {
		list[0] = nowhere((uint64_t)i << 58, 1);
		list[1] = here(i, 1);
		send_wr(remote(IBV_WR_RDMA_WRITE, HALF, region->rkey), list, 2);
		completed(1, IBV_WC_SUCCESS);
		require(!buffer[HALF] && buffer[HALF + 1] == 1 + i, "other bytes arrived");
	}

	begin("as the memory of a peer");
	list[0] = here(0, 64);
	send_wr(remote(IBV_WR_RDMA_READ, 0, null->rkey), list, 1);
	completed(1, IBV_WC_REM_ACCESS_ERR);
	untouched(0, 2 * HALF);
	connect_to_itself(qp, gid, gid_index, mtu, ACCESS);
	send_wr(remote(IBV_WR_RDMA_WRITE, 0, null->rkey), list, 1);
	completed(1, IBV_WC_REM_ACCESS_ERR);

	begin("other verbs");
	require(ibv_rereg_mr(null, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0, ACCESS), "it was given other rights");
	list[0] = nowhere(0, 64);
	require(ibv_advise_mr(pd, IBV_ADVISE_MR_ADVICE_PREFETCH, 0, list, 1) == EINVAL, "it follows an advice");
	struct ibv_mw *window = must("ibv_alloc_mw", ibv_alloc_mw(pd, IBV_MW_TYPE_1));
	struct ibv_mw_bind bind = {
		.send_flags = IBV_SEND_SIGNALED,
		.bind_info = { .mr = null, .addr = 0, .length = 64, .mw_access_flags = IBV_ACCESS_REMOTE_READ },
	};

	connect_to_itself(qp, gid, gid_index, mtu, ACCESS);
	check("ibv_bind_mw", ibv_bind_mw(qp, window, &bind));
	completed(1, IBV_WC_MW_BIND_ERR);
	check("ibv_dealloc_mw", ibv_dealloc_mw(window));

	/* perftest never deregisters its null region. */
	begin("the end");
	check("ibv_destroy_qp", ibv_destroy_qp(qp));
	check("ibv_destroy_cq", ibv_destroy_cq(cq));
	check("ibv_dereg_mr", ibv_dereg_mr(region));
	check("ibv_dealloc_pd", ibv_dealloc_pd(pd));
	check("ibv_dereg_mr", ibv_dereg_mr(null));
	check("ibv_close_device", ibv_close_device(context));
	puts("ok");
	return 0;
}
