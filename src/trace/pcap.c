/*
 * pcap.c - writes pcapng (draft-ietf-opsawg-pcapng)
 *
 * The file always ends at the end of a block. Blocks are built whole in a
 * buffer, which is written when it is full, when its oldest block is PCAP_AGE_NS
 * old, or when the owner asks. If writing fails half way (the disk is full),
 * the half is cut off again and recording stops.
 *
 * Several processes can record in one file: each appends whole blocks, and has
 * interfaces of its own, whose numbers follow those that are there. So a packet
 * says which process has recorded it, and a file has one section. Who appends
 * interfaces holds a lock (F_OFD_SETLK) meanwhile; packets need none. A
 * recorder holds a shared lock (flock(2)) on its file while it lives, so that
 * no process empties a file that others write to.
 *
 * A FIFO's reader may fall behind, or stop. It is waited for, but only briefly:
 * a transfer must not depend on its observer. Packets that then do not fit the
 * buffer are left out, and the next block says how many.
 */
#include "pcap.h"
#include "tcp.h"

#include "base/bytes.h"
#include "base/checksum.h"
#include "base/path.h"
#include "base/say.h"
#include "base/sys.h"
#include "wire/grh.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define BUF_SIZE (256u << 10)
#define PATIENCE_MS 100 /* with the reader of a FIFO, while sending */
#define FAREWELL_MS 1000 /* and at the end */
#define TURN_MS 10 /* between looks whether others have appended interfaces */
#define TURNS 200

/* pcapng has the byte order of its writer, which SHB's magic shows. */
#define BLOCK_SHB 0x0a0d0d0au
#define BLOCK_IDB 1u
#define BLOCK_EPB 6u
#define MAGIC 0x1a2b3c4du
#define LINKTYPE_ETHERNET 1u
#define LINKTYPE_RAW 101u
#define OPT_END 0u
#define OPT_SHB_USERAPPL 4u
#define OPT_IF_NAME 2u
#define OPT_IF_TSRESOL 9u
#define BLOCK_HEAD 12u /* type, length, and an SHB's magic */
#define OPT_EPB_FLAGS 2u
#define OPT_EPB_DROPCOUNT 4u
#define EPB_INBOUND 1u
#define EPB_OUTBOUND 2u

#define EPB_HEAD 28u /* before the packet's bytes */
#define EPB_TAIL 28u /* epb_flags, _dropcount, end of options, length */

#define V4_LEN 20u
#define V6_LEN 40u
#define UDP_LEN 8u
#define TCP_LEN 20u
#define ETHER_LEN 14u
#define PROTO_TCP 6u
#define PROTO_UDP 17u

/* Of packets that are not IP's; NULL: all are. */
static const struct pcap_frames *frames;
static bool rocev1; /* an interface of Ethernet */

struct pcap {
	int fd;
	pid_t pid;
	uint64_t file; /* pcap_file() */
	uint32_t interface; /* our first */
	pthread_mutex_t lock; /* covers what follows */
	_Atomic int error; /* errno of the write that ended the recording */
	bool stalled; /* waiting for the reader has timed out: do not wait again */
	uint64_t dropped; /* packets since the last in buf */
	uint64_t oldest_ns; /* of the blocks in buf */
	size_t used;
	uint8_t buf[BUF_SIZE];
};

static void put_u16(uint8_t **p, size_t v)
{
	uint16_t w = (uint16_t)v;

	memcpy(*p, &w, sizeof(w));
	*p += sizeof(w);
}

static void put_u32(uint8_t **p, size_t v)
{
	uint32_t w = (uint32_t)v;

	memcpy(*p, &w, sizeof(w));
	*p += sizeof(w);
}

static void put_opt(uint8_t **p, uint32_t code, const void *value, size_t len)
{
	size_t padded = (len + 3) & ~(size_t)3;

	put_u16(p, code);
	put_u16(p, len);
	memset(*p, 0, padded);
	if (len)
		memcpy(*p, value, len);
	*p += padded;
}

/* A block's total length stands after its type and again at its end. */
static void end_block(uint8_t *block, uint8_t **p)
{
	size_t len = (size_t)(*p - block) + 4;
	uint8_t *at = block + 4;

	put_u32(&at, len);
	put_u32(p, len);
}

static void put_section(struct pcap *p)
{
	static const char appl[] = "softhca";
	uint8_t *at = p->buf + p->used, *block = at;

	put_u32(&at, BLOCK_SHB);
	put_u32(&at, 0);
	put_u32(&at, MAGIC);
	put_u16(&at, 1); /* version 1.0 */
	put_u16(&at, 0);
	put_u32(&at, UINT32_MAX); /* section length not known: -1 */
	put_u32(&at, UINT32_MAX);
	put_opt(&at, OPT_SHB_USERAPPL, appl, sizeof(appl) - 1);
	put_opt(&at, OPT_END, NULL, 0);
	end_block(block, &at);
	p->used = (size_t)(at - p->buf);
}

static void put_interfaces(struct pcap *p)
{
	const char *const device[] = {
		[PCAP_ROCE] = frames ? frames->device : "softhca0",
		[PCAP_IWARP] = "softiw0",
		[PCAP_ROCEV1] = "softhca0 RoCE v1",
	};
	const uint32_t linktype[] = {
		[PCAP_ROCE] = frames ? frames->linktype : LINKTYPE_RAW,
		[PCAP_IWARP] = LINKTYPE_RAW,
		[PCAP_ROCEV1] = LINKTYPE_ETHERNET,
	};
	const size_t n = rocev1 ? PCAP_ROCEV1 + 1 : PCAP_ROCEV1;
	const uint8_t nanoseconds = 9;
	uint8_t *at = p->buf + p->used, *block;
	char name[64];

	for (size_t i = 0; i < n; i++) {
		snprintf(name, sizeof(name), "%s pid %d %s", device[i],
			 (int)p->pid, program_invocation_short_name);
		block = at;
		put_u32(&at, BLOCK_IDB);
		put_u32(&at, 0);
		put_u16(&at, linktype[i]);
		put_u16(&at, 0);
		put_u32(&at, 0); /* packets are never cut short */
		put_opt(&at, OPT_IF_NAME, name, strlen(name));
		put_opt(&at, OPT_IF_TSRESOL, &nanoseconds, 1);
		put_opt(&at, OPT_END, NULL, 0);
		end_block(block, &at);
	}
	p->used = (size_t)(at - p->buf);
}

/* Writes the IP header to h; the sum of the pseudo header (RFC 768, 9293, 8200)
 * of the len bytes behind it. */
static uint64_t put_ip(uint8_t *h, const struct pcap_pkt *pkt, bool v4,
		       size_t len)
{
	const uint8_t proto = pkt->tcp ? PROTO_TCP : PROTO_UDP;

	if (v4) {
		h[0] = 0x45;
		h[1] = pkt->tclass;
		put_be16(h + 2, (uint32_t)(V4_LEN + len));
		put_be16(h + 4, pkt->ip_id);
		put_be16(h + 6, 0x4000); /* DF */
		h[8] = pkt->hop_limit;
		h[9] = proto;
		put_be16(h + 10, 0);
		memcpy(h + 12, pkt->src->raw + 12, 4);
		memcpy(h + 16, pkt->dst->raw + 12, 4);
		put_be16(h + 10, inet_fold(inet_sum(0, h, V4_LEN)));
		return inet_sum(proto + len, h + 12, 8);
	}
	put_be32(h, 0x60000000u | (uint32_t)pkt->tclass << 20 |
			    (pkt->flow_label & 0xfffff));
	put_be16(h + 4, (uint32_t)len);
	h[6] = proto;
	h[7] = pkt->hop_limit;
	memcpy(h + 8, pkt->src->raw, 16);
	memcpy(h + 24, pkt->dst->raw, 16);
	return inet_sum(proto + len, h + 8, 32);
}

static void put_udp(uint8_t *h, const struct pcap_pkt *pkt, size_t len,
		    uint64_t sum)
{
	uint16_t check;

	put_be16(h, pkt->sport);
	put_be16(h + 2, pkt->dport);
	put_be16(h + 4, (uint32_t)len);
	put_be16(h + 6, 0);
	check = inet_fold(inet_sum(sum, h, len));
	put_be16(h + 6, check ? check : 0xffff);
}

static void put_tcp(uint8_t *h, const struct pcap_pkt *pkt, size_t len,
		    uint64_t sum)
{
	put_be16(h, pkt->sport);
	put_be16(h + 2, pkt->dport);
	put_be32(h + 4, pkt->tcp->seq);
	put_be32(h + 8, pkt->tcp->ack);
	h[12] = TCP_LEN / 4 << 4;
	h[13] = pkt->tcp->flags;
	put_be16(h + 14, UINT16_MAX); /* window */
	put_be32(h + 16, 0);
	put_be16(h + 16, inet_fold(inet_sum(sum, h, len)));
}

/* Those of a frame of RoCE v1, whose payload has len bytes. */
static void put_frame(uint8_t *h, const struct pcap_pkt *pkt, size_t len)
{
	memcpy(h, pkt->ether->dst, 6);
	memcpy(h + 6, pkt->ether->src, 6);
	put_be16(h + 12, ROCEV1_ETHERTYPE);
	grh_put(h + ETHER_LEN, &(struct grh){ .sgid = *pkt->src,
					      .dgid = *pkt->dst,
					      .flow_label = pkt->flow_label,
					      .tclass = pkt->tclass,
					      .hop_limit = pkt->hop_limit,
					      .pay_len = (uint16_t)len });
}

static size_t head_len(const struct pcap_pkt *pkt, bool v4)
{
	if (pkt->ether)
		return ETHER_LEN + GRH_LEN;
	return (v4 ? V4_LEN : V6_LEN) + (pkt->tcp ? TCP_LEN : UDP_LEN);
}

/* Writes IP and transport headers to h; what follows them is in place. */
static void put_headers(uint8_t *h, const struct pcap_pkt *pkt, bool v4,
			size_t len)
{
	const size_t ip_len = v4 ? V4_LEN : V6_LEN;
	uint64_t sum;

	if (pkt->ether) {
		put_frame(h, pkt, len - ETHER_LEN - GRH_LEN);
		return;
	}
	sum = put_ip(h, pkt, v4, len - ip_len);
	if (pkt->tcp)
		put_tcp(h + ip_len, pkt, len - ip_len, sum);
	else
		put_udp(h + ip_len, pkt, len - ip_len, sum);
}

void pcap_rocev1(void)
{
	rocev1 = true;
}

void pcap_set_frames(const struct pcap_frames *f)
{
	frames = f;
}

/*
 * False in a forked child: it has a copy of the buffer, and of a lock that may
 * be held forever; the file stays its parent's.
 */
static bool is_ours(const struct pcap *p)
{
	return p->pid == getpid();
}

/*
 * Writes without sending the program a signal that it does not expect: SIGPIPE
 * when the file is a FIFO and Wireshark, its reader, has left; SIGXFSZ at the
 * limit of a file's size.
 */
static ssize_t write_quietly(int fd, const uint8_t *buf, size_t len)
{
	sigset_t ours, before, pending;
	int error;
	ssize_t n;

	sigemptyset(&ours);
	sigaddset(&ours, SIGPIPE);
	sigaddset(&ours, SIGXFSZ);
	pthread_sigmask(SIG_BLOCK, &ours, &before);
	sigpending(&pending);
	n = sys_write(fd, buf, len);
	if (n < 0 && (errno == EPIPE || errno == EFBIG)) {
		error = errno;
		if (sigismember(&pending, SIGPIPE))
			sigdelset(&ours, SIGPIPE);
		if (sigismember(&pending, SIGXFSZ))
			sigdelset(&ours, SIGXFSZ);
		sys_take_signal(&ours);
		errno = error;
	}
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	return n;
}

/* Whether a full FIFO gets room within ms. */
static bool has_room(struct pcap *p, int ms)
{
	struct pollfd pfd = { .fd = p->fd, .events = POLLOUT };
	int n = p->stalled ? 0 : sys_poll(&pfd, 1, ms);

	p->stalled = n == 0;
	return n > 0 || (n < 0 && errno == EINTR);
}

/*
 * Empties the buffer; on failure sets p->error, for good. What a FIFO does not
 * accept within ms stays in the buffer.
 */
static void flush_locked(struct pcap *p, int ms)
{
	size_t done = 0;
	struct stat st;
	ssize_t n;

	while (done < p->used && !p->error) {
		n = write_quietly(p->fd, p->buf + done, p->used - done);
		if (n > 0) {
			done += (size_t)n;
			p->stalled = false;
		} else if (n < 0 && errno == EAGAIN) {
			if (!has_room(p, ms))
				break;
		} else if (n == 0 || errno != EINTR) {
			p->error = n == 0 ? EIO : errno;
		}
	}
	/* Cuts off the half block, unless another process wrote after it. */
	if (p->error && done && !fstat(p->fd, &st) && S_ISREG(st.st_mode) &&
	    st.st_size == lseek(p->fd, 0, SEEK_CUR) &&
	    ftruncate(p->fd, st.st_size - (off_t)done) != 0)
		done = 0; /* it stays; readers see it */
	if (p->error)
		done = p->used;
	p->used -= done;
	memmove(p->buf, p->buf + done, p->used);
}

static uint64_t clock_ns(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_REALTIME, &ts);
	return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

static void drop_locked(struct pcap *p)
{
	static atomic_flag said = ATOMIC_FLAG_INIT;

	p->dropped++;
	if (!atomic_flag_test_and_set(&said))
		say("the reader of the recording is too slow: packets are "
		    "dropped; record to a file instead of a FIFO");
}

static void write_pkt(struct pcap *p, const struct pcap_pkt *pkt)
{
	bool v4 = roce_gid_is_v4(pkt->src) && roce_gid_is_v4(pkt->dst);
	const bool framed = frames && v4 && !pkt->tcp && !pkt->ether;
	size_t head = framed ? frames->head(pkt) : head_len(pkt, v4);
	size_t tail = framed ? frames->tail : 0;
	size_t len = head + tail, padded;
	uint8_t *at, *block, *data;
	uint64_t now = clock_ns();
	uint64_t when = pkt->realtime_ns ? pkt->realtime_ns : now;
	uint32_t flags = pkt->outbound ? EPB_OUTBOUND : EPB_INBOUND;
	int i;

	if (!is_ours(p))
		return;
	for (i = 0; i < pkt->niov; i++)
		len += pkt->iov[i].iov_len;
	if (len > PCAP_PKT_MAX)
		return; /* too long for a packet */
	padded = (len + 3) & ~(size_t)3;

	pthread_mutex_lock(&p->lock);
	if (p->used + EPB_HEAD + padded + EPB_TAIL > BUF_SIZE)
		flush_locked(p, PATIENCE_MS);
	if (p->error)
		goto unlock;
	if (p->used + EPB_HEAD + padded + EPB_TAIL > BUF_SIZE) {
		drop_locked(p);
		goto unlock;
	}
	if (!p->used)
		p->oldest_ns = now;

	at = block = p->buf + p->used;
	put_u32(&at, BLOCK_EPB);
	put_u32(&at, 0);
	put_u32(&at, p->interface + (pkt->ether ? PCAP_ROCEV1 :
				     pkt->tcp   ? PCAP_IWARP :
						  PCAP_ROCE));
	put_u32(&at, when >> 32);
	put_u32(&at, when & UINT32_MAX);
	put_u32(&at, len);
	put_u32(&at, len);

	data = at;
	at += head;
	for (i = 0; i < pkt->niov; i++) {
		if (pkt->iov[i].iov_len)
			memcpy(at, pkt->iov[i].iov_base, pkt->iov[i].iov_len);
		at += pkt->iov[i].iov_len;
	}
	at += tail;
	if (framed)
		frames->put(data, pkt, when, len);
	else
		put_headers(data, pkt, v4, len);
	memset(at, 0, padded - len);
	at += padded - len;

	put_opt(&at, OPT_EPB_FLAGS, &flags, sizeof(flags));
	if (p->dropped)
		put_opt(&at, OPT_EPB_DROPCOUNT, &p->dropped,
			sizeof(p->dropped));
	p->dropped = 0;
	put_opt(&at, OPT_END, NULL, 0);
	end_block(block, &at);
	p->used = (size_t)(at - p->buf);
	/* A clock that was set back also flushes. */
	if (now - p->oldest_ns >= PCAP_AGE_NS) {
		flush_locked(p, PATIENCE_MS);
		p->oldest_ns = now;
	}
unlock:
	pthread_mutex_unlock(&p->lock);
}

void pcap_flush(struct pcap *p)
{
	if (!is_ours(p))
		return;
	pthread_mutex_lock(&p->lock);
	p->stalled = false;
	if (p->used)
		flush_locked(p, FAREWELL_MS);
	pthread_mutex_unlock(&p->lock);
}

void pcap_write_aged(struct pcap *p)
{
	/* Who has the lock records, and looks at the age himself. */
	if (!is_ours(p) || pthread_mutex_trylock(&p->lock))
		return;
	if (p->used && !p->stalled) {
		flush_locked(p, 0);
		p->stalled = false; /* nobody has waited for its reader */
	}
	pthread_mutex_unlock(&p->lock);
}

int pcap_restart(int fd)
{
	struct stat st;

	if (fstat(fd, &st) || !S_ISREG(st.st_mode))
		return 0;
	if (flock(fd, LOCK_EX | LOCK_NB) && errno == EWOULDBLOCK)
		return 0;
	return ftruncate(fd, 0) ? -errno : 0;
}

/* Locks the file; anew: empties it unless another process records there. */
static int share_file(int fd, bool anew)
{
	struct stat st;
	int err = 0;

	if (fstat(fd, &st))
		return -errno;
	if (S_ISFIFO(st.st_mode)) {
		/* A pipe accepts blocks in pieces: two writers' would mix. */
		if (flock(fd, LOCK_EX | LOCK_NB) && errno == EWOULDBLOCK)
			return -EBUSY;
		/* Not at open(), which waits for the reader. */
		fcntl(fd, F_SETFL, O_NONBLOCK);
	} else if (S_ISREG(st.st_mode)) {
		if (anew)
			err = pcap_restart(fd);
		/* Recording goes on where there are no locks. */
		flock(fd, LOCK_SH);
	}
	return err;
}

/* A regular file, to read: its writers' descriptor is not for that. */
static int open_again(int fd)
{
	char name[32];
	struct stat st;

	if (fstat(fd, &st) || !S_ISREG(st.st_mode))
		return -1;
	snprintf(name, sizeof(name), "/proc/self/fd/%d", fd);
	return sys_open(name, O_RDONLY, 0);
}

/*
 * How many interfaces the file's last section has. -1: there is none, or what
 * is there is no pcapng of this host's byte order, so that a section is to
 * begin. Reads into p->buf, which is empty.
 */
static int64_t count_interfaces(struct pcap *p, int fd)
{
	uint64_t from = 0, at = 0;
	int64_t interfaces = -1;
	size_t have = 0;
	uint32_t head[3];
	ssize_t n;

	for (;; at += head[1]) {
		if (at < from || at - from + BLOCK_HEAD > have) {
			from = at;
			n = sys_pread(fd, p->buf, BUF_SIZE, from);
			have = n > 0 ? (size_t)n : 0;
			if (n < 0)
				return -1;
			/* Perhaps in a block that is being written. */
			if (have < BLOCK_HEAD)
				return interfaces;
		}
		memcpy(head, p->buf + (at - from), sizeof(head));
		if (head[1] < BLOCK_HEAD || head[1] % 4)
			return -1;
		if (head[0] == BLOCK_SHB)
			interfaces = head[2] == MAGIC ? 0 : -1;
		if (interfaces < 0)
			return -1;
		if (head[0] == BLOCK_IDB)
			interfaces++;
	}
}

/* Waits for others that append interfaces, but not for one that has stopped. */
static void lock_turn(int fd, short type)
{
	struct flock lock = { .l_type = type, .l_whence = SEEK_SET };

	for (int i = 0; i < TURNS; i++) {
		if (!fcntl(fd, F_OFD_SETLK, &lock) ||
		    (errno != EAGAIN && errno != EACCES))
			return;
		sys_poll(NULL, 0, TURN_MS);
	}
}

/* Appends the interfaces of this process, behind a section's header unless one
 * is there. */
static void begin_section(struct pcap *p)
{
	int fd = open_again(p->fd);
	int64_t others = -1;

	if (fd >= 0) {
		lock_turn(p->fd, F_WRLCK);
		others = count_interfaces(p, fd);
		sys_close(fd);
	}
	if (others < 0)
		put_section(p);
	p->interface = others < 0 ? 0 : (uint32_t)others;
	put_interfaces(p);
	flush_locked(p, FAREWELL_MS);
	if (fd >= 0)
		lock_turn(p->fd, F_UNLCK);
}

static uint64_t file(const struct pcap *p)
{
	return p->error ? 0 : p->file;
}

static const struct pcap_ops ops = {
	.write = write_pkt,
	.file = file,
	.tcp_begin = tcp_begin,
	.tcp_connected = tcp_connected,
	.tcp_data = tcp_data,
	.tcp_fin = tcp_fin,
	.tcp_reset = tcp_reset,
	.tcp_free = tcp_free,
};

int pcap_open(struct pcap **out, const char *path)
{
	struct pcap *p;
	struct stat st;
	char *name;
	int err;

	name = path_expand(path);
	if (!name)
		return -ENOMEM;
	p = malloc(sizeof(*p));
	if (!p) {
		err = -ENOMEM;
		goto err_free_name;
	}
	p->pid = getpid();
	p->file = 0;
	p->error = 0;
	p->stalled = false;
	p->dropped = 0;
	p->used = 0;
	/* Only the owner may read it: payloads are the user's data. */
	p->fd = path_open_output(name, O_WRONLY | O_APPEND);
	if (p->fd < 0) {
		err = -errno;
		goto err_free_pcap;
	}
	pthread_mutex_init(&p->lock, NULL);
	err = share_file(p->fd, strcmp(name, path) != 0);
	if (err)
		goto err_close;
	if (!fstat(p->fd, &st))
		p->file = (uint64_t)st.st_dev * 0x9e3779b97f4a7c15u ^
			  (uint64_t)st.st_ino;
	begin_section(p);
	if (p->error) {
		err = -p->error;
		goto err_close;
	}
	free(name);
	pcap_ops = &ops;
	*out = p;
	return 0;

err_close:
	pthread_mutex_destroy(&p->lock);
	sys_close(p->fd);
err_free_pcap:
	free(p);
err_free_name:
	free(name);
	return err;
}

void pcap_close(struct pcap *p)
{
	if (!p)
		return;
	if (is_ours(p)) {
		pcap_flush(p);
		pthread_mutex_destroy(&p->lock);
	}
	sys_close(p->fd);
	free(p);
}
