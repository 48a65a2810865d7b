/*
 * Verbs from a distance: runs in a guest, on the kernel's RDMA device, and does what a test on
 * the host says. It judges nothing.
 *
 *     verbs link NAME NETDEV    makes the rxe device NAME on a network device
 *     verbs serve NAME CHANNEL  serves a character device until `end`
 *
 * A request is a line: a word and numbers, decimal or with 0x. Each has one line for an answer:
 * `ok` and values, or `error ERRNO`, when the call was refused with that errno. Regions,
 * queue pairs and address handles are called by small numbers, given out from 0 on.
 *
 *     gid INDEX                                     -> the GID, 32 hexadecimal digits
 *     region LENGTH ACCESS                          -> number address lkey rkey
 *     put REGION OFFSET HEX / take REGION OFFSET LENGTH -> bytes
 *     fill REGION OFFSET LENGTH SEED                bytes of a generator
 *     hash REGION OFFSET LENGTH                     -> FNV-1a of the bytes
 *     create TYPE SENDS RECEIVES ENTRIES INLINE     -> number queue-pair-number
 *     init PAIR ACCESS QKEY
 *     receive-ready PAIR MTU DESTINATION PSN DEPTH RNR-TIMER GID-INDEX GID
 *     send-ready PAIR PSN TIMEOUT RETRIES RNR-RETRIES DEPTH
 *     fail PAIR                                     to the state ERR
 *     state PAIR                                    -> the number of the state
 *     address GID-INDEX GID                         -> number
 *     send PAIR ID OPCODE FLAGS IMMEDIATE ADDRESS RKEY COMPARE SWAP HANDLE QPN QKEY [ADDRESS LENGTH LKEY]...
 *     receive PAIR ID [ADDRESS LENGTH LKEY]...
 *     poll PAIR SIDE COUNT MILLISECONDS             -> id,status,opcode,length,flags,immediate ...
 *     events                                        -> numbers of the asynchronous events since
 *     counters                                      -> name=value of the hardware counters
 *     destroy PAIR / forget REGION / end
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <infiniband/verbs.h>
#include <netlink/msg.h>
#include <netlink/netlink.h>
#include <poll.h>
#include <rdma/rdma_netlink.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <termios.h>
#include <time.h>
#include <unistd.h>

enum { REGIONS = 1024, PAIRS = 1024, HANDLES = 64, WORDS = 64, LINE = 1 << 17 };

struct region {
	struct ibv_mr *mr;
	uint8_t *bytes;
	size_t length;
};

struct pair {
	struct ibv_qp *qp;
	/* Completions of sends, and of receives. */
	struct ibv_cq *queues[2];
};

static struct ibv_context *context;
static struct ibv_pd *domain;
static struct region regions[REGIONS];
static struct pair pairs[PAIRS];
static struct ibv_ah *handles[HANDLES];
static unsigned region_count, pair_count, handle_count;
static char device_name[64];
static FILE *channel;

/* The words of the request that is being carried out. */
static char *words[WORDS];
static int word_count;

static uint64_t number(int index)
{
	return index < word_count ? strtoull(words[index], NULL, 0) : 0;
}

static int refuse(int error)
{
	fprintf(channel, "error %d\n", error < 0 ? -error : error);
	return 0;
}

/* The answer to a call that has no value to give. */
static int answer(int error)
{
	if (error)
		return refuse(error);
	fputs("ok\n", channel);
	return 0;
}

static struct pair *pair_of(int index)
{
	uint64_t at = number(index);

	return at < pair_count && pairs[at].qp ? &pairs[at] : NULL;
}

static struct region *region_of(int index)
{
	uint64_t at = number(index);

	return at < region_count && regions[at].mr ? &regions[at] : NULL;
}

/* The region of a request with an offset and a length that lie in it. */
static struct region *part_of(int index, size_t length)
{
	struct region *region = region_of(index);
	uint64_t offset = number(index + 1);

	return region && offset <= region->length && length <= region->length - offset ? region : NULL;
}

static void gid_of(int index, union ibv_gid *gid)
{
	const char *text = index < word_count ? words[index] : "";

	memset(gid, 0, sizeof(*gid));
	for (int at = 0; at < 16 && strlen(text) >= 32; at++)
		sscanf(text + 2 * at, "%2hhx", &gid->raw[at]);
}

static struct ibv_ah_attr path(int gid_index, int gid)
{
	struct ibv_ah_attr attributes = {
		.is_global = 1, .port_num = 1, .grh = { .sgid_index = number(gid_index), .hop_limit = 64 }
	};

	gid_of(gid, &attributes.grh.dgid);
	return attributes;
}

static int gid(void)
{
	union ibv_gid gid;
	int error = ibv_query_gid(context, 1, number(1), &gid);

	if (error)
		return refuse(errno);
	fputs("ok ", channel);
	for (int at = 0; at < 16; at++)
		fprintf(channel, "%02x", gid.raw[at]);
	fputs("\n", channel);
	return 0;
}

static int region(void)
{
	size_t length = number(1), size = (length + 4096) & ~4095ul;
	struct region *region = &regions[region_count];

	if (region_count == REGIONS)
		return refuse(ENOSPC);
	region->bytes = aligned_alloc(4096, size);
	if (!region->bytes)
		return refuse(ENOMEM);
	memset(region->bytes, 0, size);
	region->length = length;
	region->mr = ibv_reg_mr(domain, region->bytes, length, number(2));
	if (!region->mr) {
		int error = errno;

		free(region->bytes);
		return refuse(error);
	}
	fprintf(channel, "ok %u %#lx %u %u\n", region_count++, (unsigned long)region->bytes, region->mr->lkey,
		region->mr->rkey);
	return 0;
}

static int put(void)
{
	const char *text = word_count > 3 ? words[3] : "";
	size_t length = strlen(text) / 2;
	struct region *region = part_of(1, length);

	if (!region)
		return refuse(EINVAL);
	for (size_t at = 0; at < length; at++)
		sscanf(text + 2 * at, "%2hhx", &region->bytes[number(2) + at]);
	return answer(0);
}

static int take(void)
{
	size_t length = number(3);
	struct region *region = part_of(1, length);

	if (!region)
		return refuse(EINVAL);
	fputs("ok ", channel);
	for (size_t at = 0; at < length; at++)
		fprintf(channel, "%02x", region->bytes[number(2) + at]);
	fputs("\n", channel);
	return 0;
}

/* SplitMix64, eight bytes of each number, least significant first. */
static int fill(void)
{
	size_t length = number(3);
	struct region *region = part_of(1, length);
	uint64_t state = number(4);

	if (!region)
		return refuse(EINVAL);
	for (size_t at = 0; at < length; at += 8) {
		uint64_t value = state += 0x9e3779b97f4a7c15;

		value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9;
		value = (value ^ (value >> 27)) * 0x94d049bb133111eb;
		value ^= value >> 31;
		for (size_t byte = 0; byte < 8 && at + byte < length; byte++)
			region->bytes[number(2) + at + byte] = value >> (8 * byte);
	}
	return answer(0);
}

static int hash(void)
{
	size_t length = number(3);
	struct region *region = part_of(1, length);
	uint64_t hash = 0xcbf29ce484222325;

	if (!region)
		return refuse(EINVAL);
	for (size_t at = 0; at < length; at++)
		hash = (hash ^ region->bytes[number(2) + at]) * 0x100000001b3;
	fprintf(channel, "ok %#lx\n", (unsigned long)hash);
	return 0;
}

static int forget(void)
{
	struct region *region = region_of(1);
	int error = region ? ibv_dereg_mr(region->mr) : EINVAL;

	if (!error) {
		free(region->bytes);
		region->mr = NULL;
	}
	return answer(error);
}

static int create(void)
{
	struct pair *pair = &pairs[pair_count];
	uint32_t sends = number(2), receives = number(3);
	enum ibv_qp_type type = !strcmp(words[1], "rc") ? IBV_QPT_RC : !strcmp(words[1], "uc") ? IBV_QPT_UC : IBV_QPT_UD;

	if (pair_count == PAIRS)
		return refuse(ENOSPC);
	pair->queues[0] = ibv_create_cq(context, 2 * sends + 16, NULL, NULL, 0);
	pair->queues[1] = pair->queues[0] ? ibv_create_cq(context, 2 * receives + 16, NULL, NULL, 0) : NULL;
	if (!pair->queues[1])
		return refuse(errno);
	struct ibv_qp_init_attr options = {
		.send_cq = pair->queues[0],
		.recv_cq = pair->queues[1],
		.cap = { .max_send_wr = sends, .max_recv_wr = receives, .max_send_sge = number(4),
			 .max_recv_sge = number(4), .max_inline_data = number(5) },
		.qp_type = type,
		.sq_sig_all = 1,
	};
	pair->qp = ibv_create_qp(domain, &options);
	if (!pair->qp)
		return refuse(errno);
	fprintf(channel, "ok %u %u\n", pair_count++, pair->qp->qp_num);
	return 0;
}

static int init(void)
{
	struct pair *pair = pair_of(1);
	bool datagram = pair && pair->qp->qp_type == IBV_QPT_UD;
	struct ibv_qp_attr attributes = {
		.qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = number(2), .qkey = number(3)
	};
	int mask = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | (datagram ? IBV_QP_QKEY : IBV_QP_ACCESS_FLAGS);

	return answer(pair ? ibv_modify_qp(pair->qp, &attributes, mask) : EINVAL);
}

static int receive_ready(void)
{
	struct pair *pair = pair_of(1);
	struct ibv_qp_attr attributes = {
		.qp_state = IBV_QPS_RTR, .path_mtu = number(2), .dest_qp_num = number(3), .rq_psn = number(4),
		.max_dest_rd_atomic = number(5), .min_rnr_timer = number(6), .ah_attr = path(7, 8)
	};
	int mask = IBV_QP_STATE;

	if (!pair)
		return refuse(EINVAL);
	if (pair->qp->qp_type != IBV_QPT_UD)
		mask |= IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
	if (pair->qp->qp_type == IBV_QPT_RC)
		mask |= IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
	return answer(ibv_modify_qp(pair->qp, &attributes, mask));
}

static int send_ready(void)
{
	struct pair *pair = pair_of(1);
	struct ibv_qp_attr attributes = {
		.qp_state = IBV_QPS_RTS, .sq_psn = number(2), .timeout = number(3), .retry_cnt = number(4),
		.rnr_retry = number(5), .max_rd_atomic = number(6)
	};
	int mask = IBV_QP_STATE | IBV_QP_SQ_PSN;

	if (!pair)
		return refuse(EINVAL);
	if (pair->qp->qp_type == IBV_QPT_RC)
		mask |= IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC;
	return answer(ibv_modify_qp(pair->qp, &attributes, mask));
}

static int fail(void)
{
	struct pair *pair = pair_of(1);
	struct ibv_qp_attr attributes = { .qp_state = IBV_QPS_ERR };

	return answer(pair ? ibv_modify_qp(pair->qp, &attributes, IBV_QP_STATE) : EINVAL);
}

static int state(void)
{
	struct pair *pair = pair_of(1);
	struct ibv_qp_attr attributes;
	struct ibv_qp_init_attr options;
	int error = pair ? ibv_query_qp(pair->qp, &attributes, IBV_QP_STATE, &options) : EINVAL;

	if (error)
		return refuse(error);
	fprintf(channel, "ok %d\n", attributes.qp_state);
	return 0;
}

static int address(void)
{
	struct ibv_ah_attr attributes = path(1, 2);

	if (handle_count == HANDLES)
		return refuse(ENOSPC);
	handles[handle_count] = ibv_create_ah(domain, &attributes);
	if (!handles[handle_count])
		return refuse(errno);
	fprintf(channel, "ok %u\n", handle_count++);
	return 0;
}

/* The scatter-gather entries from a word on. */
static int entries_from(int index, struct ibv_sge *entries)
{
	int count = 0;

	for (; index + 2 < word_count; index += 3)
		entries[count++] = (struct ibv_sge){ number(index), number(index + 1), number(index + 2) };
	return count;
}

static int send_request(void)
{
	struct pair *pair = pair_of(1);
	struct ibv_sge entries[WORDS];
	struct ibv_send_wr *bad, request = {
		.wr_id = number(2), .opcode = number(3), .send_flags = number(4), .sg_list = entries,
		.num_sge = entries_from(13, entries),
	};

	if (!pair)
		return refuse(EINVAL);
	if (request.opcode == IBV_WR_SEND_WITH_INV)
		request.invalidate_rkey = number(5);
	else
		request.imm_data = htonl(number(5));
	if (pair->qp->qp_type == IBV_QPT_UD) {
		if (number(10) >= handle_count)
			return refuse(EINVAL);
		request.wr.ud.ah = handles[number(10)];
		request.wr.ud.remote_qpn = number(11);
		request.wr.ud.remote_qkey = number(12);
	} else if (request.opcode == IBV_WR_ATOMIC_CMP_AND_SWP || request.opcode == IBV_WR_ATOMIC_FETCH_AND_ADD) {
		request.wr.atomic.remote_addr = number(6);
		request.wr.atomic.rkey = number(7);
		request.wr.atomic.compare_add = number(8);
		request.wr.atomic.swap = number(9);
	} else {
		request.wr.rdma.remote_addr = number(6);
		request.wr.rdma.rkey = number(7);
	}
	return answer(ibv_post_send(pair->qp, &request, &bad));
}

static int receive_request(void)
{
	struct pair *pair = pair_of(1);
	struct ibv_sge entries[WORDS];
	struct ibv_recv_wr *bad, request = {
		.wr_id = number(2), .sg_list = entries, .num_sge = entries_from(3, entries)
	};

	return answer(pair ? ibv_post_recv(pair->qp, &request, &bad) : EINVAL);
}

static int64_t now(void)
{
	struct timespec time;

	clock_gettime(CLOCK_MONOTONIC, &time);
	return time.tv_sec * 1000 + time.tv_nsec / 1000000;
}

static int poll_queue(void)
{
	struct pair *pair = pair_of(1);
	int64_t deadline = now() + number(4);
	uint64_t found = 0;

	if (!pair || number(2) > 1)
		return refuse(EINVAL);
	fputs("ok", channel);
	while (found < number(3)) {
		struct ibv_wc done;
		int count = ibv_poll_cq(pair->queues[number(2)], 1, &done);

		if (count < 0)
			break;
		if (count == 0) {
			if (now() >= deadline)
				break;
			usleep(200);
			continue;
		}
		found++;
		fprintf(channel, " %lu,%d,%d,%u,%u,%u", (unsigned long)done.wr_id, done.status, done.opcode, done.byte_len,
			done.wc_flags, ntohl(done.imm_data));
	}
	fputs("\n", channel);
	return 0;
}

static int events(void)
{
	struct pollfd waiting = { .fd = context->async_fd, .events = POLLIN };

	fputs("ok", channel);
	while (poll(&waiting, 1, 0) == 1) {
		struct ibv_async_event event;

		if (ibv_get_async_event(context, &event))
			break;
		fprintf(channel, " %d", event.event_type);
		ibv_ack_async_event(&event);
	}
	fputs("\n", channel);
	return 0;
}

static int counters(void)
{
	char path[512];
	DIR *folder;

	snprintf(path, sizeof(path), "/sys/class/infiniband/%s/ports/1/hw_counters", device_name);
	folder = opendir(path);
	if (!folder)
		return refuse(errno);
	fputs("ok", channel);
	for (struct dirent *entry; (entry = readdir(folder));) {
		char file[1024], value[64] = "";
		FILE *counter;

		if (entry->d_name[0] == '.')
			continue;
		snprintf(file, sizeof(file), "%s/%s", path, entry->d_name);
		counter = fopen(file, "r");
		if (!counter)
			continue;
		if (fscanf(counter, "%63s", value) == 1)
			fprintf(channel, " %s=%s", entry->d_name, value);
		fclose(counter);
	}
	closedir(folder);
	fputs("\n", channel);
	return 0;
}

static int destroy(void)
{
	struct pair *pair = pair_of(1);
	int error = pair ? ibv_destroy_qp(pair->qp) : EINVAL;

	if (!error) {
		ibv_destroy_cq(pair->queues[0]);
		ibv_destroy_cq(pair->queues[1]);
		pair->qp = NULL;
	}
	return answer(error);
}

/* Says that there is nothing more to do. */
static int end(void)
{
	answer(0);
	return 1;
}

static const struct {
	const char *word;
	/* How many words it needs at least. */
	int words;
	int (*act)(void);
} requests[] = {
	{ "gid", 2, gid },
	{ "region", 3, region },
	{ "put", 4, put },
	{ "take", 4, take },
	{ "fill", 5, fill },
	{ "hash", 4, hash },
	{ "forget", 2, forget },
	{ "create", 6, create },
	{ "init", 4, init },
	{ "receive-ready", 9, receive_ready },
	{ "send-ready", 7, send_ready },
	{ "fail", 2, fail },
	{ "state", 2, state },
	{ "address", 3, address },
	{ "send", 13, send_request },
	{ "receive", 3, receive_request },
	{ "poll", 5, poll_queue },
	{ "events", 1, events },
	{ "counters", 1, counters },
	{ "destroy", 2, destroy },
	{ "end", 1, end },
};

static int obey(char *line)
{
	word_count = 0;
	for (char *word = strtok(line, " \n"); word && word_count < WORDS; word = strtok(NULL, " \n"))
		words[word_count++] = word;
	for (size_t at = 0; at < sizeof(requests) / sizeof(*requests); at++)
		if (word_count >= requests[at].words && !strcmp(words[0], requests[at].word))
			return requests[at].act();
	return refuse(ENOSYS);
}

static int open_device(const char *name)
{
	int count = 0;
	struct ibv_device **devices = ibv_get_device_list(&count);

	for (int at = 0; devices && at < count; at++)
		if (!strcmp(ibv_get_device_name(devices[at]), name))
			context = ibv_open_device(devices[at]);
	if (!context) {
		fprintf(stderr, "verbs: no device %s among %d\n", name, count);
		return 1;
	}
	snprintf(device_name, sizeof(device_name), "%s", name);
	domain = ibv_alloc_pd(context);
	if (!domain) {
		perror("verbs: no protection domain");
		return 1;
	}
	return 0;
}

static int serve(const char *name, const char *path)
{
	static char line[LINE], output[LINE];
	struct termios terminal;
	int file = open(path, O_RDWR | O_NOCTTY);
	FILE *input = file < 0 ? NULL : fdopen(file, "r");

	if (!input) {
		perror(path);
		return 1;
	}
	if (tcgetattr(file, &terminal) == 0) {
		cfmakeraw(&terminal);
		tcsetattr(file, TCSANOW, &terminal);
	}
	channel = fdopen(dup(file), "w");
	if (!channel || open_device(name))
		return 1;
	setvbuf(channel, output, _IOFBF, sizeof(output));
	for (;;) {
		/* A port ends while nobody is at its other side. */
		if (!fgets(line, sizeof(line), input)) {
			clearerr(input);
			usleep(10000);
			continue;
		}
		int last = obey(line);

		fflush(channel);
		if (last)
			return 0;
	}
}

/* What `rdma link add NAME type rxe netdev NETDEV` does. */
static int link_device(const char *name, const char *netdev)
{
	struct nl_sock *socket = nl_socket_alloc();
	struct nl_msg *message = nlmsg_alloc();
	int error;

	if (!socket || !message || nl_connect(socket, NETLINK_RDMA) < 0) {
		fprintf(stderr, "verbs: no netlink to the RDMA core\n");
		return 1;
	}
	nlmsg_put(message, NL_AUTO_PORT, NL_AUTO_SEQ, RDMA_NL_GET_TYPE(RDMA_NL_NLDEV, RDMA_NLDEV_CMD_NEWLINK), 0,
		  NLM_F_REQUEST | NLM_F_ACK);
	nla_put_string(message, RDMA_NLDEV_ATTR_DEV_NAME, name);
	nla_put_string(message, RDMA_NLDEV_ATTR_LINK_TYPE, "rxe");
	nla_put_string(message, RDMA_NLDEV_ATTR_NDEV_NAME, netdev);
	error = nl_send_sync(socket, message);
	if (error < 0)
		fprintf(stderr, "verbs: cannot make %s on %s: %s\n", name, netdev, nl_geterror(error));
	nl_socket_free(socket);
	return error < 0;
}

int main(int count, char **arguments)
{
	if (count == 4 && !strcmp(arguments[1], "link"))
		return link_device(arguments[2], arguments[3]);
	if (count == 4 && !strcmp(arguments[1], "serve"))
		return serve(arguments[2], arguments[3]);
	fprintf(stderr, "usage: verbs link NAME NETDEV | verbs serve NAME CHANNEL\n");
	return 2;
}
