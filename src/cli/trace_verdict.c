/*
 * trace_verdict.c - what is to be learnt from a recording, in one line
 */
#include "base/lines.h"
#include "cli/cli.h"
#include "cli/trace.h"

#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

struct line {
	char *text;
	size_t size, used;
};

static void __attribute__((format(printf, 2, 3)))
add(struct line *l, const char *fmt, ...)
{
	va_list ap;
	int n;

	va_start(ap, fmt);
	n = vsnprintf(l->text + l->used, l->size - l->used, fmt, ap);
	va_end(ap);
	if (n > 0)
		l->used += (size_t)n < l->size - l->used ? (size_t)n : 0;
}

static void add_percent(struct line *l, double part, double all)
{
	const double percent = all > 0 ? 100 * part / all : 0;

	add(l, percent < 10 && percent != (int)percent ? "%.1f %%" : "%.0f %%",
	    percent);
}

static void add_time(struct line *l, uint64_t ns)
{
	struct cli_time t;

	if (ns < 1000000)
		add(l, "%.1f us", (double)ns / 1e3);
	else
		add(l, "%s", cli_time(ns, &t));
}

static int by_size(const void *a, const void *b)
{
	const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

	return x < y ? -1 : x > y;
}

/* Of n requests, sorted by how long they took. */
static void add_slowest(struct line *l, const uint64_t *all, size_t n)
{
	const size_t first = n - n / 100;
	const uint64_t median = all[n / 2];

	if (n < 2)
		return;
	if (n < 100) {
		add(l, "; the slowest took ");
		add_time(l, all[n - 1]);
	} else {
		add(l, "; the slowest 1 %% took ");
		add_time(l, all[first]);
		add(l, " or more");
	}
	add(l, ", and half of them ");
	add_time(l, median);
	add(l, " or less");
}

static void add_phase(struct line *l, const uint64_t sum[TRACE_PHASES])
{
	static const char *const words[TRACE_PHASES] = {
		[TRACE_P_WINDOW] = "they waited for the window",
		[TRACE_P_SENDING] = "went from the first packet to the last",
		[TRACE_P_ANSWER] = "they waited for the acknowledgement",
		[TRACE_P_COMPLETING] = "they waited for the completion",
		[TRACE_P_POLLING] = "the program had not polled yet",
	};
	uint64_t all = 0;
	int most = 0;

	for (int i = 0; i < TRACE_PHASES; i++) {
		all += sum[i];
		if (sum[i] > sum[most])
			most = i;
	}
	if (!all)
		return;
	add(l, "; ");
	add_percent(l, (double)sum[most], (double)all);
	add(l, " of the time %s", words[most]);
}

int trace_verdict(const struct trace_set *t, const struct trace_wanted *want,
		  struct trace_verdict *v)
{
	uint64_t *all = malloc((t->nwrs + 1u) * sizeof(*all));
	uint64_t sum[TRACE_PHASES] = { 0 }, ns[TRACE_PHASES], failed = 0;
	struct line l = { .text = v->text, .size = sizeof(v->text) };

	if (!all)
		return -ENOMEM;
	v->requests = v->packets = v->again = 0;
	for (uint32_t i = 0; i < t->nwrs; i++) {
		const struct trace_wr *w = &t->wr[i];

		if (w->recv || !trace_wants(t, want, w))
			continue;
		v->packets += w->packets;
		v->again += w->again;
		failed += w->completed && w->status;
		all[v->requests++] = trace_phases(w, ns);
		for (int k = 0; k < TRACE_PHASES; k++)
			sum[k] += ns[k];
	}
	if (!v->requests) {
		add(&l, "No work request is recorded.");
		free(all);
		return 0;
	}
	qsort(all, v->requests, sizeof(*all), by_size);
	if (v->again) {
		add_percent(&l, (double)v->again, (double)v->packets);
		add(&l, " of the packets were sent again");
	} else {
		add(&l, v->packets ? "No packet was sent again" :
				     "All was copied, without a packet");
	}
	if (failed)
		add(&l, "; %" PRIu64 " work request%s failed", failed,
		    plural(failed));
	add_phase(&l, sum);
	add_slowest(&l, all, v->requests);
	add(&l, ".");
	free(all);
	return 0;
}
