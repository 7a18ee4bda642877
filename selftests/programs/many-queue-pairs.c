// SPDX-License-Identifier: GPL-2.0
/*
 * Queue pairs of one unprivileged program whose work softirqs would do.
 *
 *     many-queue-pairs flush DEVICE GID_INDEX N RECEIVES
 *
 * N queue pairs with full receive queues. The only retry of each expires at about the same time.
 * The completion queue has 16 entries, so that the program needs little memory.
 *
 *     many-queue-pairs refused DEVICE GID_INDEX N RECEIVES ADDRESS
 *
 * N queue pairs with full receive queues, connected to the IPv4 address: prints their numbers. The
 * test sends the packets. Their expected PSN is 0.
 *
 *     many-queue-pairs unacknowledged DEVICE GID_INDEX N SIZE ADDRESS
 *
 * N queue pairs, connected to the IPv4 address, each with a WRITE that no queue pair acknowledges:
 * prints their numbers, and the time of the first post in seconds of CLOCK_MONOTONIC. Their
 * expected PSN is 0.
 *
 *     many-queue-pairs rnr DEVICE GID_INDEX N SIZE
 *
 * N pairs of this device, each with one SEND that finds no receive and is retried without end.
 *
 *     many-queue-pairs late DEVICE GID_INDEX N SECONDS
 *
 * N pairs of this device. In each round, every pair sends 64 bytes, and its receive is posted a
 * millisecond later. Prints the messages per second.
 *
 *     many-queue-pairs spin SECONDS
 *
 * A busy program: prints its loops per second, and the longest time for which it did not run, in
 * microseconds.
 *
 * Once the queue pairs are set up, the program prints "ready" and, except for `late`, pauses.
 */
#include "common.h"

#include <arpa/inet.h>
#include <grp.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#define MESSAGE 64
#define NOBODY 65534
/* A number that no queue pair of the tests has. */
#define NO_QP 0xabcdef

static struct ibv_context *context;
static struct ibv_pd *pd;
static struct ibv_mr *mr;
static union ibv_gid gid, peer;
static int gid_index;
static char *memory;

static double now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec + t.tv_nsec / 1e9;
}

static int spin(double seconds)
{
	double start = now(), last = start, gap = 0;
	unsigned long loops = 0;

	while (last - start < seconds) {
		double t;

		for (volatile int i = 0; i < 100; i++)
			;
		loops++;
		t = now();
		if (t - last > gap)
			gap = t - last;
		last = t;
	}
	printf("{\"loops\": %.0f, \"gap\": %.0f}\n", loops / (last - start), gap * 1e6);
	return 0;
}

static struct ibv_cq *create_cq(int entries)
{
	struct ibv_cq *cq = ibv_create_cq(context, entries, NULL, NULL, 0);

	if (!cq)
		fail("ibv_create_cq", errno);
	return cq;
}

static struct ibv_qp *create_qp(struct ibv_cq *cq, unsigned int receives)
{
	struct ibv_qp_init_attr init = {
		.send_cq = cq,
		.recv_cq = cq,
		.qp_type = IBV_QPT_RC,
		.cap = { .max_send_wr = 1, .max_recv_wr = receives, .max_send_sge = 1, .max_recv_sge = 1 },
	};
	struct ibv_qp *qp = ibv_create_qp(pd, &init);

	if (!qp)
		fail("ibv_create_qp", errno);
	return qp;
}

static void change(struct ibv_qp *qp, struct ibv_qp_attr attr, int mask)
{
	int error = ibv_modify_qp(qp, &attr, mask);

	if (error)
		fail("ibv_modify_qp", error);
}

static void connect_qp(struct ibv_qp *qp, unsigned int number, int retries)
{
	change(qp,
	       (struct ibv_qp_attr){ .qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = IBV_ACCESS_REMOTE_WRITE },
	       IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
	change(qp,
	       (struct ibv_qp_attr){
		       .qp_state = IBV_QPS_RTR,
		       .path_mtu = IBV_MTU_1024,
		       .dest_qp_num = number,
		       .max_dest_rd_atomic = 1,
		       .min_rnr_timer = 1,
		       .ah_attr = { .is_global = 1,
				    .port_num = 1,
				    .grh = { .dgid = peer, .sgid_index = gid_index, .hop_limit = 64 } },
	       },
	       IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
		       IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
	/* A timeout of half a second. */
	change(qp,
	       (struct ibv_qp_attr){ .qp_state = IBV_QPS_RTS,
				     .timeout = 17,
				     .retry_cnt = retries,
				     .rnr_retry = 7,
				     .max_rd_atomic = 1 },
	       IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
		       IBV_QP_MAX_QP_RD_ATOMIC);
}

static void post(struct ibv_qp *qp, enum ibv_wr_opcode opcode, unsigned int size)
{
	struct ibv_sge sge = { .addr = (uintptr_t)memory, .length = size, .lkey = mr->lkey };
	struct ibv_send_wr wr = { .sg_list = &sge, .num_sge = 1, .opcode = opcode, .send_flags = IBV_SEND_SIGNALED };
	struct ibv_send_wr *bad;
	int error = ibv_post_send(qp, &wr, &bad);

	if (error)
		fail("ibv_post_send", error);
}

static void post_send(struct ibv_qp *qp, unsigned int size)
{
	post(qp, IBV_WR_SEND, size);
}

static void post_recv(struct ibv_qp *qp, unsigned int size)
{
	struct ibv_sge sge = { .addr = (uintptr_t)memory, .length = size, .lkey = mr->lkey };
	struct ibv_recv_wr wr = { .sg_list = &sge, .num_sge = size ? 1 : 0 };
	struct ibv_recv_wr *bad;
	int error = ibv_post_recv(qp, &wr, &bad);

	if (error)
		fail("ibv_post_recv", error);
}

static void open_device(const char *name)
{
	struct ibv_device **list = ibv_get_device_list(NULL);

	for (; list && *list && strcmp(ibv_get_device_name(*list), name); list++)
		;
	context = list && *list ? ibv_open_device(*list) : NULL;
	if (!context)
		fail("ibv_open_device", ENODEV);
	if (ibv_query_gid(context, 1, gid_index, &gid))
		fail("ibv_query_gid", errno);
	peer = gid;
	pd = ibv_alloc_pd(context);
	if (!pd)
		fail("ibv_alloc_pd", errno);
	memory = mmap(NULL, 1 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	mr = memory == MAP_FAILED ? NULL : ibv_reg_mr(pd, memory, 1 << 20, IBV_ACCESS_LOCAL_WRITE);
	if (!mr)
		fail("ibv_reg_mr", errno);
}

/* Prints "ready" and pauses. */
static int ready(void)
{
	printf("ready\n");
	pause();
	return 0;
}

static int flush(int n, int receives)
{
	struct ibv_cq *cq = create_cq(16);
	struct ibv_qp *qps[n];

	for (int i = 0; i < n; i++) {
		qps[i] = create_qp(cq, receives);
		connect_qp(qps[i], NO_QP, 0);
		for (int j = 0; j < receives; j++)
			post_recv(qps[i], 0);
	}
	for (int i = 0; i < n; i++)
		post_send(qps[i], 8);
	return ready();
}

static void set_peer(const char *address)
{
	memset(&peer, 0, sizeof(peer));
	memset(peer.raw + 10, 0xff, 2);
	if (inet_pton(AF_INET, address, peer.raw + 12) != 1)
		fail(address, EINVAL);
}

static int refused(int n, int receives, const char *address)
{
	struct ibv_cq *cq = create_cq(16);

	set_peer(address);
	for (int i = 0; i < n; i++) {
		struct ibv_qp *qp = create_qp(cq, receives);

		connect_qp(qp, NO_QP, 7);
		for (int j = 0; j < receives; j++)
			post_recv(qp, 0);
		printf("%u\n", qp->qp_num);
	}
	return ready();
}

static int unacknowledged(int n, int size, const char *address)
{
	struct ibv_cq *cq = create_cq(n);
	struct ibv_qp *qps[n];

	set_peer(address);
	for (int i = 0; i < n; i++) {
		qps[i] = create_qp(cq, 1);
		connect_qp(qps[i], NO_QP, 7);
		printf("%u\n", qps[i]->qp_num);
	}
	printf("%.6f\n", now());
	for (int i = 0; i < n; i++)
		post(qps[i], IBV_WR_RDMA_WRITE, size);
	return ready();
}

/* Creates N pairs: a sender and a receiver each. */
static void create_pairs(struct ibv_qp *(*pairs)[2], int n, struct ibv_cq *cq)
{
	for (int i = 0; i < n; i++) {
		for (int side = 0; side < 2; side++)
			pairs[i][side] = create_qp(cq, 1);
		for (int side = 0; side < 2; side++)
			connect_qp(pairs[i][side], pairs[i][!side]->qp_num, 7);
	}
}

static int rnr(int n, int size)
{
	struct ibv_qp *pairs[n][2];

	create_pairs(pairs, n, create_cq(16));
	for (int i = 0; i < n; i++)
		post_send(pairs[i][0], size);
	return ready();
}

static int late(int n, double seconds)
{
	const struct timespec millisecond = { .tv_nsec = 1000000 };
	struct ibv_cq *cq = create_cq(2 * n);
	struct ibv_qp *pairs[n][2];
	unsigned long messages = 0;
	double start;

	create_pairs(pairs, n, cq);
	start = now();
	while (now() - start < seconds) {
		for (int i = 0; i < n; i++)
			post_send(pairs[i][0], MESSAGE);
		nanosleep(&millisecond, NULL);
		for (int i = 0; i < n; i++)
			post_recv(pairs[i][1], MESSAGE);
		for (int left = 2 * n; left;) {
			struct ibv_wc wc[32];
			int found = ibv_poll_cq(cq, 32, wc);

			if (found < 0)
				fail("ibv_poll_cq", EIO);
			for (int i = 0; i < found; i++)
				if (wc[i].status != IBV_WC_SUCCESS)
					fail(ibv_wc_status_str(wc[i].status), EIO);
			left -= found;
			if (!found)
				nanosleep(&(struct timespec){ .tv_nsec = 20000 }, NULL);
		}
		messages += n;
	}
	printf("{\"messages\": %.0f}\n", messages / (now() - start));
	return 0;
}

int main(int argc, char **argv)
{
	const char *mode = argc > 1 ? argv[1] : "";
	int n = argc > 4 ? atoi(argv[4]) : 0;

	setvbuf(stdout, NULL, _IOLBF, 0);
	if (argc == 3 && !strcmp(mode, "spin"))
		return spin(atof(argv[2]));
	if (argc < 6 || n < 1) {
		fprintf(stderr, "usage: many-queue-pairs flush|refused|unacknowledged|rnr|late DEVICE GID_INDEX N NUMBER [ADDRESS]\n");
		return 2;
	}
	/* The test chooses how much memory the program can lock. */
	if (setgroups(0, NULL) || setgid(NOBODY) || setuid(NOBODY))
		fail("setuid", errno);
	gid_index = atoi(argv[3]);
	open_device(argv[2]);
	if (!strcmp(mode, "flush"))
		return flush(n, atoi(argv[5]));
	if (!strcmp(mode, "refused") && argc == 7)
		return refused(n, atoi(argv[5]), argv[6]);
	if (!strcmp(mode, "unacknowledged") && argc == 7)
		return unacknowledged(n, atoi(argv[5]), argv[6]);
	if (!strcmp(mode, "rnr"))
		return rnr(n, atoi(argv[5]));
	if (!strcmp(mode, "late"))
		return late(n, atof(argv[5]));
	return 2;
}
