/*
 * internal.h - what the files of src/check share
 */
#ifndef SOFTHCA_CHECK_INTERNAL_H
#define SOFTHCA_CHECK_INTERNAL_H

#include "check.h"

enum check_rule {
	CHECK_WRITTEN,
	CHECK_SQ_STUCK,
	CHECK_SQ_OVERRUN,
	CHECK_CQ_OVERRUN,
	CHECK_RULES
};

extern struct check_env check_env;

/* stack.c */

#define CHECK_FRAMES 16

/* The return addresses of check_here()'s number, innermost first. */
unsigned check_frames(uint32_t stack, void *frames[CHECK_FRAMES]);
void check_stacks_begin(void);

/* report.c */

/* Where the program was when it did one of the things that do not go together:
 * "posted". */
struct check_side {
	const char *what;
	uint32_t stack;
};

void check_reports_begin(const char *json, int exit_status);
void check_reports_forked(void);
/* A finding: qpn is the QP it is about, or 0. The text names what has happened;
 * what to change is the rule's. */
void check_report(enum check_rule rule, uint32_t qpn,
		  const struct check_side *side, size_t nsides, const char *fmt,
		  ...) __attribute__((format(printf, 5, 6), cold));

/* queue.c */
void check_queues_forked(void);

#endif
