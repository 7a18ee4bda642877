// SPDX-License-Identifier: GPL-2.0
/*
 * Deregisters memory while another thread has it written or read, and checks that nothing touches
 * the memory once ibv_dereg_mr() has returned, or ibv_rereg_mr() if that has removed the rights.
 *
 *     late-bytes DEVICE GID_INDEX ROUNDS
 *         by a pair of queue pairs of this program
 *     late-bytes DEVICE GID_INDEX ROUNDS NETDEV MAC PEER
 *         by forged packets
 *
 * In a round a region is registered, another thread keeps the traffic to or from it going, this one
 * deregisters it, or removes its rights, and writes OURS to the memory. If the memory is a target,
 * each byte must then stay as it is; if it is a source, no byte of OURS may arrive elsewhere. Each
 * round ends with an error of the traffic, which no longer finds the region or has no right to it.
 *
 * Forged packets are WRITEs that are sent on NETDEV, as from the IPv4 address PEER, to the device's
 * address and MAC.
 *
 * Prints the rounds and messages as a line of JSON. Exits with status 1 if a byte was touched, or
 * if a call fails.
 */
#include "common.h"

#include <arpa/inet.h>
#include <net/ethernet.h>
#include <net/if.h>
#include <netinet/ip.h>
#include <netinet/udp.h>
#include <netpacket/packet.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <sys/socket.h>
#include <unistd.h>

#define SIZE 65536
#define DEPTH 4
#define RIGHTS (IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ)

/* The byte that traffic writes, and the byte that the owner writes after the revocation. */
#define THEIRS 0xaa
#define OURS 0x55

#define ROCE_PORT 4791
#define WRITE_ONLY 0x0a
#define FORGED 1024
/* Forged packets after the deregistration. */
#define AFTER 4

static struct ibv_pd *pd;
static union ibv_gid gid, peer_gid;
static int gid_index;

/* The memory that is revoked, its region, and the other end of the traffic. */
static unsigned char *memory, *other;
static struct ibv_mr *taken, *kept;

/* The other thread works on a round, and the messages or packets that it has passed in it. */
static atomic_bool going, idle = true;
static atomic_ulong passed;
/* A message has failed in this round. */
static atomic_bool failed;
/* Messages or packets of all rounds. */
static unsigned long all;
/* Rounds in which a message failed before the revocation: by timeouts. */
static unsigned early;

static void *zeroed(void)
{
	void *bytes = must("aligned_alloc", aligned_alloc(4096, SIZE));

	memset(bytes, 0, SIZE);
	return bytes;
}

static struct ibv_mr *registered(void *bytes)
{
	return must("ibv_reg_mr", ibv_reg_mr(pd, bytes, SIZE, RIGHTS));
}

static struct ibv_qp *queue_pair(void)
{
	struct ibv_cq *cq = must("ibv_create_cq", ibv_create_cq(pd->context, 4 * DEPTH, NULL, NULL, 0));
	struct ibv_qp_init_attr init = {
		.send_cq = cq,
		.recv_cq = cq,
		.cap = { .max_send_wr = DEPTH, .max_recv_wr = DEPTH, .max_send_sge = 1, .max_recv_sge = 1 },
		.qp_type = IBV_QPT_RC,
		.sq_sig_all = 1,
	};

	return must("ibv_create_qp", ibv_create_qp(pd, &init));
}

/* Resets a queue pair, which drops its completions, and prepares it to receive from `peer`. */
static void ready_to_receive(struct ibv_qp *qp, const union ibv_gid *from, uint32_t peer)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_RESET };

	check("RESET", ibv_modify_qp(qp, &attr, IBV_QP_STATE));
	attr = (struct ibv_qp_attr){ .qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = RIGHTS };
	check("INIT", ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS));
	attr = (struct ibv_qp_attr){
		.qp_state = IBV_QPS_RTR,
		.path_mtu = IBV_MTU_4096,
		.dest_qp_num = peer,
		.max_dest_rd_atomic = DEPTH,
		.min_rnr_timer = 1,
		.ah_attr = {
			.is_global = 1,
			.port_num = 1,
			.grh = { .dgid = *from, .sgid_index = gid_index, .hop_limit = 64 },
		},
	};
	check("RTR", ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
					      IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER));
}

static void ready_to_send(struct ibv_qp *qp)
{
	struct ibv_qp_attr attr = {
		.qp_state = IBV_QPS_RTS, .timeout = 9, .retry_cnt = 7, .rnr_retry = 7, .max_rd_atomic = DEPTH,
	};

	check("RTS", ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
					      IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC));
}

/* Returns whether a byte is somewhere in the buffer. */
static bool contains(const unsigned char *bytes, unsigned char byte)
{
	return memchr(bytes, byte, SIZE);
}

/* Returns whether all bytes of the buffer are this one. */
static bool is_all(const unsigned char *bytes, unsigned char byte)
{
	return bytes[0] == byte && !memcmp(bytes, bytes + 1, SIZE - 1);
}

/* Waits for `count` messages or packets. Returns false if one fails before. */
static bool wait_for(unsigned long count)
{
	while (passed < count && !failed)
		sched_yield();
	return passed >= count;
}

/* Has the other thread begin a round. */
static void begin(void)
{
	passed = 0;
	failed = false;
	idle = false;
	going = true;
}

/* Has the other thread end the round. */
static void end(void)
{
	going = false;
	while (!idle)
		sched_yield();
	all += passed;
}

/* Revokes the memory, and writes to it. `by_rights` keeps the region without rights. */
static void take_back(unsigned round, bool by_rights)
{
	/* At another place of a message each time. */
	for (volatile unsigned i = 0; i < round % 64 * 200; i++)
		;
	if (by_rights)
		check("ibv_rereg_mr", ibv_rereg_mr(taken, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0, 0));
	else
		check("ibv_dereg_mr", ibv_dereg_mr(taken));
	memset(memory, OURS, SIZE);
}

/* The pair: the first queue pair posts to the second. */

static struct ibv_qp *pair[2];

enum mode { WRITE, READ, RECEIVE, SEND, MODES };
static const char *const names[MODES] = { "write", "read", "receive", "send" };
static enum mode mode;

static bool is_target(void)
{
	return mode == WRITE || mode == RECEIVE;
}

/* Posts a message, and the receive for it if it needs one. */
static void post(void)
{
	struct ibv_sge of_taken = { (uintptr_t)memory, SIZE, taken->lkey };
	struct ibv_sge of_kept = { (uintptr_t)other, SIZE, kept->lkey };
	struct ibv_recv_wr receive = { .num_sge = 1, .sg_list = mode == RECEIVE ? &of_taken : &of_kept };
	struct ibv_send_wr send = {
		.num_sge = 1,
		.sg_list = mode == SEND ? &of_taken : &of_kept,
		.opcode = mode == WRITE ? IBV_WR_RDMA_WRITE : mode == READ ? IBV_WR_RDMA_READ : IBV_WR_SEND,
		.wr.rdma = { (uintptr_t)memory, taken->rkey },
	};
	struct ibv_recv_wr *bad_receive;
	struct ibv_send_wr *bad_send;

	if (send.opcode == IBV_WR_SEND)
		check("ibv_post_recv", ibv_post_recv(pair[1], &receive, &bad_receive));
	check("ibv_post_send", ibv_post_send(pair[0], &send, &bad_send));
}

/* Returns whether all completions that are there are successes. */
static bool polled(struct ibv_qp *qp, int *outstanding)
{
	struct ibv_wc found[4];
	int count = ibv_poll_cq(qp->send_cq, 4, found);
	bool good = true;

	if (count < 0)
		fail("ibv_poll_cq", EIO);
	for (int i = 0; i < count; i++)
		good &= found[i].status == IBV_WC_SUCCESS;
	if (outstanding)
		*outstanding -= count;
	return good;
}

/* Posts messages until one fails, and waits for the end of all. */
static void *keep_posting(void *unused)
{
	for (;;) {
		int outstanding = 0;
		bool good = true;

		while (!going)
			sched_yield();
		while (good || outstanding) {
			for (; good && outstanding < DEPTH; outstanding++)
				post();
			int before = outstanding;

			good &= polled(pair[0], &outstanding) & polled(pair[1], NULL);
			if (good)
				passed += before - outstanding;
			failed = !good;
		}
		while (going)
			sched_yield();
		idle = true;
	}
	return unused;
}

static void own_round(unsigned round)
{
	mode = round % MODES;
	memset(is_target() ? other : memory, THEIRS, SIZE);
	memset(is_target() ? memory : other, 0, SIZE);
	for (int i = 0; i < 2; i++)
		ready_to_receive(pair[i], &gid, pair[!i]->qp_num);
	ready_to_send(pair[0]);
	ready_to_send(pair[1]);
	taken = registered(memory);
	begin();
	if (!wait_for(1 + round / MODES % 3))
		early++;
	else if (!contains(is_target() ? memory : other, THEIRS))
		fail("the messages before", EIO);
	/* Sending one's own memory needs no right. */
	bool by_rights = round / MODES % 2 && mode != SEND;

	take_back(round, by_rights);
	/* Waits until all messages have completed, which fail from now on. */
	end();
	if (by_rights)
		check("ibv_dereg_mr", ibv_dereg_mr(taken));
	ready_to_receive(pair[1], &gid, pair[0]->qp_num);
	if (is_target() ? !is_all(memory, OURS) : contains(other, OURS)) {
		fprintf(stderr, "late-bytes: round %u: a %s accessed revoked memory\n", round, names[mode]);
		exit(1);
	}
}

/* Forged packets. */

static struct ibv_qp *victim;
static int wire;

struct packet {
	struct ether_header eth;
	struct iphdr ip;
	struct udphdr udp;
	uint8_t opcode, flags;
	uint16_t pkey;
	uint32_t qpn, psn;
	uint64_t address;
	uint32_t rkey, length;
	uint8_t payload[FORGED];
	uint32_t icrc;
} __attribute__((packed));

static struct packet packet;

static uint32_t crc32(uint32_t crc, const void *bytes, size_t count)
{
	static uint32_t table[256];

	for (uint32_t i = 0; !table[255] && i < 256; i++) {
		table[i] = i;
		for (int bit = 0; bit < 8; bit++)
			table[i] = table[i] >> 1 ^ (table[i] & 1 ? 0xedb88320 : 0);
	}
	for (const uint8_t *byte = bytes; count--; byte++)
		crc = crc >> 8 ^ table[(uint8_t)crc ^ *byte];
	return crc;
}

/* Computes the ICRC (IBA 7.8.1, A17.3.2): fields that routers change count as ones. */
static void seal(void)
{
	struct packet masked = packet;
	static const uint8_t ones[8] = { 255, 255, 255, 255, 255, 255, 255, 255 };

	masked.ip.tos = masked.ip.ttl = 0xff;
	masked.ip.check = masked.udp.check = 0xffff;
	*(uint8_t *)&masked.qpn = 0xff;
	size_t count = offsetof(struct packet, icrc) - offsetof(struct packet, ip);

	packet.icrc = htole32(~crc32(crc32(~0u, ones, 8), &masked.ip, count));
}

static uint16_t ip_checksum(void)
{
	const uint8_t *bytes = (const uint8_t *)&packet.ip;
	uint32_t sum = 0;

	for (int i = 0; i < 20; i += 2)
		sum += bytes[i] << 8 | bytes[i + 1];
	while (sum >> 16)
		sum = (sum & 0xffff) + (sum >> 16);
	return htons(~sum);
}

static void make_packet(const char *mac, const char *peer)
{
	uint8_t *to = packet.eth.ether_dhost;

	if (sscanf(mac, "%hhx:%hhx:%hhx:%hhx:%hhx:%hhx", to, to + 1, to + 2, to + 3, to + 4, to + 5) != 6)
		fail(mac, EINVAL);
	packet.eth.ether_shost[0] = 2;
	packet.eth.ether_type = htons(ETHERTYPE_IP);
	packet.ip = (struct iphdr){
		.version = 4,
		.ihl = 5,
		.ttl = 64,
		.protocol = IPPROTO_UDP,
		.frag_off = htons(IP_DF),
		.tot_len = htons(sizeof(packet) - sizeof(packet.eth)),
	};
	if (inet_pton(AF_INET, peer, &packet.ip.saddr) != 1)
		fail(peer, EINVAL);
	memcpy(&packet.ip.daddr, gid.raw + 12, 4);
	packet.ip.check = ip_checksum();
	memcpy(peer_gid.raw, gid.raw, 12);
	memcpy(peer_gid.raw + 12, &packet.ip.saddr, 4);
	packet.udp.source = htons(0xc123);
	packet.udp.dest = htons(ROCE_PORT);
	packet.udp.len = htons(sizeof(packet) - sizeof(packet.eth) - sizeof(packet.ip));
	packet.opcode = WRITE_ONLY;
	packet.pkey = 0xffff;
	packet.qpn = htonl(victim->qp_num);
	packet.length = htonl(FORGED);
	memset(packet.payload, THEIRS, FORGED);
}

/* Sends WRITEs with consecutive PSNs, which go round the region. */
static void *keep_forging(void *unused)
{
	for (;;) {
		while (!going)
			sched_yield();
		packet.rkey = htonl(taken->rkey);
		for (uint32_t psn = 0; going; psn++) {
			packet.psn = htonl(psn & 0xffffff);
			packet.address = htobe64((uintptr_t)memory + psn * FORGED % SIZE);
			seal();
			if (send(wire, &packet, sizeof(packet), 0) < 0 && errno != ENOBUFS)
				fail("send", errno);
			passed++;
		}
		idle = true;
	}
	return unused;
}

static void forged_round(unsigned round)
{
	memset(memory, 0, SIZE);
	ready_to_receive(victim, &peer_gid, 1234);
	taken = registered(memory);
	begin();
	while (!contains(memory, THEIRS))
		sched_yield();
	bool by_rights = round % 2;

	take_back(round, by_rights);
	wait_for(passed + AFTER);
	end();
	if (by_rights)
		check("ibv_dereg_mr", ibv_dereg_mr(taken));
	ready_to_receive(victim, &peer_gid, 1234);
	if (!is_all(memory, OURS)) {
		fprintf(stderr, "late-bytes: round %u: a forged packet accessed revoked memory\n", round);
		exit(1);
	}
}

static void prepare_forging(const char *netdev, const char *mac, const char *peer)
{
	struct sockaddr_ll place = { .sll_family = AF_PACKET, .sll_ifindex = if_nametoindex(netdev) };

	if (!place.sll_ifindex)
		fail(netdev, errno);
	wire = socket(AF_PACKET, SOCK_RAW, 0);
	if (wire < 0 || bind(wire, (struct sockaddr *)&place, sizeof(place)))
		fail("packet socket", errno);
	victim = queue_pair();
	make_packet(mac, peer);
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
	bool is_forged = argc == 7;
	pthread_t thread;

	if (argc != 4 && !is_forged) {
		fputs("usage: late-bytes DEVICE GID_INDEX ROUNDS [NETDEV MAC PEER]\n", stderr);
		return 2;
	}
	struct ibv_context *context = open_device(argv[1]);
	unsigned rounds = atoi(argv[3]);

	gid_index = atoi(argv[2]);
	check("ibv_query_gid", ibv_query_gid(context, 1, gid_index, &gid));
	pd = must("ibv_alloc_pd", ibv_alloc_pd(context));
	memory = zeroed();
	other = zeroed();
	kept = registered(other);
	if (is_forged)
		prepare_forging(argv[4], argv[5], argv[6]);
	else
		for (int i = 0; i < 2; i++)
			pair[i] = queue_pair();
	check("thread", pthread_create(&thread, NULL, is_forged ? keep_forging : keep_posting, NULL));
	for (unsigned round = 0; round < rounds; round++)
		is_forged ? forged_round(round) : own_round(round);
	printf("{\"rounds\": %u, \"early\": %u, \"messages\": %lu}\n", rounds, early, all);
	return 0;
}
