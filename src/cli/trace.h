/*
 * trace.h - softhca trace: what its files share
 */
#ifndef SOFTHCA_CLI_TRACE_H
#define SOFTHCA_CLI_TRACE_H

#include "trace/read.h"

#include <stdio.h>

/* What the user wants to see of a set. */
struct trace_wanted {
	uint32_t qp; /* TRACE_NOTHING: all */
	bool one_wr;
	uint64_t wr;
	uint64_t since_ns; /* by the set's clock */
	size_t rows;
};

bool trace_wants(const struct trace_set *t, const struct trace_wanted *want,
		 const struct trace_wr *w);

/* Of the work requests that are wanted, but receives: how many, of how many
 * packets, and what they tell, in one line. 0 or -ENOMEM. */
struct trace_verdict {
	uint64_t requests, packets, again;
	char text[512];
};
int trace_verdict(const struct trace_set *t, const struct trace_wanted *want,
		  struct trace_verdict *v);

/* Names, for readers. */
const char *trace_wr_op(const struct trace_wr *w);
const char *trace_reason_text(enum trace_reason r);
const char *trace_drop_text(unsigned why);
/* A packet or an FPDU, by its op; NULL: there is none. */
const char *trace_op_text(uint8_t op);
/* A message of the connection manager, by its attribute ID or enum trace_mpa. */
const char *trace_message_text(unsigned attr);

/* From when to when each thread slept, thread by thread; to be freed. *n: how
 * many. 0 or -ENOMEM. */
struct trace_sleep {
	uint64_t from, to;
	uint32_t proc, tid, place;
};
int trace_sleeps(const struct trace_set *t, struct trace_sleep **out,
		 uint32_t *n);

/* When processes were suspended, and QPs have waited for such a peer, as it began; to
 * be freed. *n: how many. 0 or -ENOMEM. */
struct trace_move {
	uint64_t from, to; /* to is 0: the recording has no end of it */
	uint32_t proc, qp; /* TRACE_NOTHING: the process is suspended itself */
};
int trace_moves(const struct trace_set *t, struct trace_move **out,
		uint32_t *n);

/* When the first event was. */
uint64_t trace_begin_ns(const struct trace_set *t);

/* trace_html.c, trace_export.c: write the whole set. 0 or -errno. */
int trace_html(const struct trace_set *t, FILE *f);
int trace_perfetto(const struct trace_set *t, FILE *f);
int trace_pcapng(const struct trace_set *t, FILE *f);

#endif
