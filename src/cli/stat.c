/*
 * stat.c - softhca stat: what running programs send, receive and lose
 *
 * As a table of queue pairs, once or again and again; as JSON; or as text that
 * Prometheus reads.
 */
#include "cli/ps.h"

#include "base/bytes.h"
#include "base/gid.h"
#include "base/json.h"
#include "cli/cli.h"
#include "qp/names.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum form { TABLE, JSON, PROMETHEUS };

struct args {
	enum form form;
	pid_t pid; /* 0: all */
	double interval; /* s; 0: once */
	enum stat_counter sort; /* STAT_COUNTERS: by bytes */
};

/* A queue pair of a process. */
struct line {
	const struct stat_reply *reply;
	const struct stat_qp *qp;
	uint64_t bytes; /* since the last look, if there was one */
	uint32_t work;
	uint64_t sort;
};

static const struct argp_option options[] = {
	{ "interval", 'i', "S", 0,
	  "Again every S seconds (0.1 or more), with rates; until ^C", 0 },
	{ "json", 'j', NULL, 0, "Print JSON, with all counters", 0 },
	{ "prometheus", 'P', NULL, 0,
	  "Print the sums of each device of each process for Prometheus", 0 },
	{ "pid", 'p', "PID", 0, "Only this process", 0 },
	{ "sort", 's', "COUNTER", 0,
	  "Most of this counter first (tx_bytes, retransmits...); else most "
	  "bytes, and with --interval the order of processes",
	  0 },
	{ 0 },
};

static error_t wrong_arg(struct argp_state *state, const char *fmt,
			 const char *arg)
{
	argp_error(state, fmt, arg);
	return EINVAL;
}

static error_t parse_stat(int key, char *arg, struct argp_state *state)
{
	struct args *a = state->input;
	char *end;

	switch (key) {
	case 'j':
		a->form = JSON;
		return 0;
	case 'P':
		a->form = PROMETHEUS;
		return 0;
	case 'p':
		errno = 0;
		a->pid = (pid_t)strtol(arg, &end, 10);
		if (errno || *end || a->pid <= 0)
			return wrong_arg(
				state, "--pid=%s: a process ID is needed", arg);
		return 0;
	case 'i':
		a->interval = strtod(arg, &end);
		if (*end || !(a->interval >= 0.1 && a->interval <= 86400))
			return wrong_arg(state,
					 "--interval=%s: seconds are needed, "
					 "from 0.1 to 86400",
					 arg);
		return 0;
	case 's':
		for (a->sort = 0; a->sort < STAT_COUNTERS; a->sort++)
			if (!strcmp(arg, stat_names[a->sort].name))
				return 0;
		return wrong_arg(
			state,
			"--sort=%s: there is no such counter; --json shows all",
			arg);
	case ARGP_KEY_ARG:
		return wrong_arg(state, "stat takes no arguments, not even %s",
				 arg);
	case ARGP_KEY_END:
		if (a->interval > 0 && a->form != TABLE)
			return wrong_arg(state, "--interval is for the table%s",
					 "");
		return 0;
	}
	return ARGP_ERR_UNKNOWN;
}

static uint64_t bytes_of(const struct stat_qp *q)
{
	return q->n[STAT_TX_BYTES] + q->n[STAT_RX_BYTES] +
	       q->n[STAT_DIRECT_BYTES];
}

/* "1.50G" */
static const char *human_number(uint64_t n, char text[16])
{
	static const char units[] = " kMGTPE";
	double value = (double)n;
	size_t i = 0;

	for (; value >= 999.5 && units[i + 1]; i++)
		value /= 1000;
	if (!i)
		snprintf(text, 16, "%" PRIu64, n);
	else
		snprintf(text, 16, "%.*f%c", value < 9.995 ? 2 : value < 99.95,
			 value, units[i]);
	return text;
}

static int most_first(const void *a, const void *b)
{
	const struct line *x = a, *y = b;

	if (x->sort != y->sort)
		return x->sort < y->sort ? 1 : -1;
	if (x->reply->pid != y->reply->pid)
		return x->reply->pid < y->reply->pid ? -1 : 1;
	return x->qp->qpn < y->qp->qpn ? -1 : x->qp->qpn > y->qp->qpn;
}

/* The same QP at the last look; NULL: it is new. */
static const struct stat_qp *qp_before(const struct stat_reply *was, size_t n,
				       pid_t pid, uint32_t qpn)
{
	for (size_t i = 0; i < n; i++)
		for (uint32_t k = 0;
		     was[i].pid == pid && !was[i].err && k < was[i].head->nqps;
		     k++)
			if (was[i].qp[k].qpn == qpn)
				return &was[i].qp[k];
	return NULL;
}

/* interval 0: once, with what was copied instead of rates. */
static void print_line(const struct line *l, double interval)
{
	const struct stat_qp *q = l->qp;
	char t[7][16], rates[40], peer[80] = "-";
	struct gid_text gid;

	if (q->dest_qpn) {
		gid_str((const union ibv_gid *)(const void *)q->dgid, &gid);
		snprintf(peer, sizeof(peer), "%s 0x%06x", gid.text,
			 q->dest_qpn);
	}
	if (interval > 0)
		snprintf(rates, sizeof(rates), "%8s %8s",
			 human_number((uint64_t)((double)l->bytes / interval),
				      t[0]),
			 human_number((uint64_t)(l->work / interval), t[6]));
	else
		snprintf(rates, sizeof(rates), "%8s",
			 human_number(q->n[STAT_DIRECT_BYTES], t[0]));
	printf("%7d %-15.15s %-9s 0x%06x %-3s %-5s %8s %8s %s %7s %7s %7s  "
	       "%s\n",
	       (int)l->reply->pid, l->reply->comm,
	       l->reply->device[q->device].name, q->qpn, qp_type_str(q->type),
	       qp_state_str(q->state), human_number(q->n[STAT_TX_BYTES], t[1]),
	       human_number(q->n[STAT_RX_BYTES], t[2]), rates,
	       human_number(q->n[STAT_RETRANSMITS], t[3]),
	       human_number(q->n[STAT_RNR_RX] + q->n[STAT_NO_RECEIVE], t[4]),
	       human_number(q->n[STAT_OUT_OF_SEQUENCE], t[5]), peer);
}

void stat_say_silent(const struct stat_reply *r)
{
	if (r->err)
		cli_say("process %d%s%s%s %s", (int)r->pid,
			r->comm[0] ? " (" : "", r->comm, r->comm[0] ? ")" : "",
			r->err == -ETIMEDOUT ?
				"does not answer: is it stopped?" :
			r->err == -EPROTO ?
				"gives an answer that this version does not "
				"understand: another version of softhca?" :
				strerror(-r->err));
	else if (r->head->missed)
		cli_say("process %d: not all of its queue pairs are here: more "
			"were made meanwhile",
			(int)r->pid);
}

static int print_table(const struct args *a, const struct stat_reply *r,
		       size_t n, const struct stat_reply *was, size_t nwas)
{
	struct line *lines;
	size_t most = 1, count = 0;

	for (size_t i = 0; i < n; i++)
		most += r[i].err ? 0 : r[i].head->nqps;
	lines = calloc(most, sizeof(*lines));
	if (!lines)
		return -ENOMEM;
	for (size_t i = 0; i < n; i++) {
		for (uint32_t k = 0; !r[i].err && k < r[i].head->nqps; k++) {
			struct line *l = &lines[count++];
			const struct stat_qp *q = &r[i].qp[k], *old;

			old = qp_before(was, nwas, r[i].pid, q->qpn);
			*l = (struct line){ &r[i], q, bytes_of(q), 0, 0 };
			if (old && bytes_of(old) <= l->bytes) {
				l->bytes -= bytes_of(old);
				l->work = q->work - old->work;
			} else if (was || a->interval > 0) {
				l->bytes = 0;
			}
			/* Rows that are looked at again and again stay where
			 * they are. */
			if (a->sort < STAT_COUNTERS)
				l->sort = q->n[a->sort];
			else if (a->interval <= 0)
				l->sort = l->bytes;
		}
	}
	qsort(lines, count, sizeof(*lines), most_first);
	printf("%7s %-15s %-9s %-8s %-3s %-5s %8s %8s %s %7s %7s %7s  %s\n",
	       "PID", "COMMAND", "DEVICE", "QP", "TYP", "STATE", "SENT",
	       "RECEIVED", a->interval > 0 ? " BYTES/s   MSGS/s" : "  COPIED",
	       "RETRANS", "RNR", "GAPS", "PEER");
	for (size_t i = 0; i < count; i++)
		print_line(&lines[i], a->interval);
	free(lines);
	return 0;
}

static void json_counters(struct json *j, const uint64_t *n,
			  const struct stat_name *names, size_t count)
{
	json_begin(j, "counters", '{');
	for (size_t i = 0; i < count; i++)
		json_number(j, names[i].name, n[i]);
	json_end(j, '}');
}

static void json_qp(struct json *j, const struct stat_reply *r,
		    const struct stat_qp *q)
{
	struct gid_text gid;

	json_begin(j, NULL, '{');
	json_string(j, "device", r->device[q->device].name);
	json_hex(j, "qpn", 6, q->qpn);
	json_string(j, "type", qp_type_str(q->type));
	json_string(j, "state", qp_state_str(q->state));
	if (q->dest_qpn) {
		gid_str((const union ibv_gid *)(const void *)q->dgid, &gid);
		json_string(j, "peer", gid.text);
		json_hex(j, "peer_qpn", 6, q->dest_qpn);
	}
	json_string(j, "waits", q->waits);
	json_counters(j, q->n, stat_names, STAT_COUNTERS);
	json_end(j, '}');
}

static void json_lines(struct json *j, const char *text)
{
	char line[1024];

	for (size_t n; *text; text += n + (text[n] == '\n')) {
		n = strcspn(text, "\n");
		snprintf(line, sizeof(line), "%.*s", (int)n, text);
		json_string(j, NULL, line);
	}
}

static void json_answer(struct json *j, const struct stat_reply *r)
{
	json_counters(j, r->head->others_n, stat_other_names, STAT_OTHERS);
	json_begin(j, "devices", '[');
	for (uint32_t i = 0; i < r->head->ndevices; i++) {
		json_begin(j, NULL, '{');
		json_string(j, "name", r->device[i].name);
		json_string(j, "softhca_name", r->device[i].own_name);
		json_counters(j, r->device[i].n, stat_names, STAT_COUNTERS);
		json_end(j, '}');
	}
	json_end(j, ']');
	json_begin(j, "waits", '[');
	json_lines(j, r->text);
	json_end(j, ']');
	json_begin(j, "qps", '[');
	for (uint32_t i = 0; i < r->head->nqps; i++)
		json_qp(j, r, &r->qp[i]);
	json_end(j, ']');
}

static int print_json(const struct stat_reply *r, size_t n)
{
	struct json j = { stdout, .lines = true };

	json_begin(&j, NULL, '[');
	for (size_t i = 0; i < n; i++) {
		json_begin(&j, NULL, '{');
		json_number(&j, "pid", (uint64_t)r[i].pid);
		json_string(&j, "command", r[i].comm);
		if (r[i].err)
			json_string(&j, "error", strerror(-r[i].err));
		else
			json_answer(&j, &r[i]);
		json_end(&j, '}');
	}
	json_end(&j, ']');
	return 0;
}

/* A label's value, as the format wants it. */
static void print_label(const char *name, const char *value, char before_it)
{
	printf("%c%s=\"", before_it, name);
	for (; *value; value++) {
		if (*value == '"' || *value == '\\')
			putchar('\\');
		putchar(*value);
	}
	putchar('"');
}

static void print_sample(const char *name, const struct stat_reply *r,
			 const char *device, uint64_t value)
{
	char pid[16];

	snprintf(pid, sizeof(pid), "%d", (int)r->pid);
	printf("softhca_%s_total", name);
	print_label("pid", pid, '{');
	print_label("command", r->comm, ',');
	if (device)
		print_label("device", device, ',');
	printf("} %" PRIu64 "\n", value);
}

static void print_head(const struct stat_name *n)
{
	printf("# HELP softhca_%s_total %s\n# TYPE softhca_%s_total counter\n",
	       n->name, n->help, n->name);
}

static int print_prometheus(const struct stat_reply *r, size_t n)
{
	for (size_t c = 0; c < STAT_COUNTERS; c++) {
		print_head(&stat_names[c]);
		for (size_t i = 0; i < n; i++)
			for (uint32_t d = 0;
			     !r[i].err && d < r[i].head->ndevices; d++)
				print_sample(stat_names[c].name, &r[i],
					     r[i].device[d].name,
					     r[i].device[d].n[c]);
	}
	for (size_t c = 0; c < STAT_OTHERS; c++) {
		print_head(&stat_other_names[c]);
		for (size_t i = 0; i < n; i++)
			if (!r[i].err)
				print_sample(stat_other_names[c].name, &r[i],
					     NULL, r[i].head->others_n[c]);
	}
	return 0;
}

/* Moves those that were asked for to the front; how many. */
static size_t choose_processes(struct stat_reply *r, size_t n, pid_t pid)
{
	size_t to = 0;

	for (size_t i = 0; pid && i < n; i++) {
		if (r[i].pid != pid)
			continue;
		if (i != to) {
			struct stat_reply other = r[to];

			r[to] = r[i];
			r[i] = other;
		}
		to++;
	}
	return pid ? to : n;
}

/* Of a table without rows. */
static void say_none(const struct stat_reply *r, size_t n)
{
	for (size_t i = 0; i < n; i++)
		if (r[i].err || r[i].head->nqps)
			return;
	cli_say("no running program of this user has connected a queue pair; "
		"softhca ps also shows those that have none");
}

static int show_counters(const struct args *a, const struct stat_reply *r,
			 size_t n, const struct stat_reply *was, size_t nwas)
{
	int err;

	err = a->form == JSON       ? print_json(r, n) :
	      a->form == PROMETHEUS ? print_prometheus(r, n) :
				      print_table(a, r, n, was, nwas);
	fflush(stdout);
	for (size_t i = 0; i < n; i++)
		stat_say_silent(&r[i]);
	if (a->form == TABLE && a->interval <= 0)
		say_none(r, n);
	return err;
}

int cmd_stat(int argc, char **argv)
{
	static const struct argp argp = {
		.options = options,
		.parser = parse_stat,
		.doc = "Shows the queue pairs of this user's running programs, "
		       "and what they "
		       "send, receive and lose. A program is shown once a "
		       "queue pair of it has "
		       "been connected.\v"
		       "The columns:\n"
		       "  SENT, RECEIVED  bytes of payload in packets\n"
		       "  COPIED          bytes that this end has moved "
		       "without packets, from and to\n"
		       "                  processes of this host\n"
		       "  BYTES/s         all three, since the last look\n"
		       "  MSGS/s          work requests and receives that were "
		       "done since then\n"
		       "  RETRANS         times that it went back to send "
		       "again\n"
		       "  RNR             messages that found no receive "
		       "posted, here or there\n"
		       "  GAPS            requests that arrived ahead of the "
		       "one due: some were lost\n"
		       "\n"
		       "Examples:\n"
		       "  softhca stat -i 1\n"
		       "  softhca stat --sort retransmits\n"
		       "  softhca stat --pid 1234 --json\n"
		       "  softhca ps                          # what they wait "
		       "for",
	};
	struct args a = { .sort = STAT_COUNTERS };
	struct stat_reply *r = NULL, *was = NULL;
	size_t n = 0, nwas = 0, chosen;
	int err;

	cli_parse(&argp, argc, argv, EXIT_USAGE, NULL, &a);
	do {
		err = stat_ask(NULL,
			       a.form == JSON ? STAT_WANT_ALL :
						STAT_WANT_COUNTERS,
			       &r, &n);
		if (err) {
			cli_say("cannot ask: %s", strerror(-err));
			break;
		}
		chosen = choose_processes(r, n, a.pid);
		if (a.pid && !chosen) {
			cli_say("process %d is not a running softhca program "
				"of this user, or has not connected a queue "
				"pair yet",
				(int)a.pid);
			err = -ESRCH;
		}
		if (a.interval > 0 && isatty(STDOUT_FILENO))
			printf("\033[H\033[J");
		if (!err)
			err = show_counters(&a, r, chosen, was, nwas);
		stat_free(was, nwas);
		was = r;
		nwas = n;
		if (!err && a.interval > 0)
			nanosleep(
				&(struct timespec){
					(time_t)a.interval,
					(long)((a.interval -
						(double)(time_t)a.interval) *
					       1e9) },
				NULL);
	} while (!err && a.interval > 0 && !ferror(stdout));
	stat_free(was, nwas);
	return err ? EXIT_FAILURE : EXIT_SUCCESS;
}
