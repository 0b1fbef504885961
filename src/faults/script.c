/*
 * script.c - the grammar of fault scripts
 *
 * A line is words, separated by blanks or '=', so "nth=3" is "nth 3". The first
 * is the action, which says what the others may be. A line that differs from an
 * earlier one in nothing but nth adds to it: a log of many faults is few rules.
 */
#include "script.h"
#include "faults.h"

#include "base/bytes.h"
#include "base/gid.h"

#include <arpa/inet.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LINE_MAX_BYTES 4096
#define WORDS 64

#define NAME(upper, lower) #lower,
static const char *const class_names[] = { FAULT_CLASSES(NAME) };
static const char *const verb_names[] = { FAULT_VERBS(NAME) };
#undef NAME

static const char *const action_names[FAULT_ACTIONS] = {
	[FAULT_DROP] = "drop",           [FAULT_DELAY] = "delay",
	[FAULT_DUPLICATE] = "duplicate", [FAULT_CORRUPT] = "corrupt",
	[FAULT_REORDER] = "reorder",     [FAULT_RNR] = "rnr",
	[FAULT_KILL] = "kill",           [FAULT_FAIL] = "fail",
	[FAULT_RAISE] = "raise",
};

static const struct {
	const char *name;
	enum ibv_event_type event;
} events[] = {
	{ "port_err", IBV_EVENT_PORT_ERR },
	{ "port_active", IBV_EVENT_PORT_ACTIVE },
	{ "gid_change", IBV_EVENT_GID_CHANGE },
	{ "lid_change", IBV_EVENT_LID_CHANGE },
	{ "pkey_change", IBV_EVENT_PKEY_CHANGE },
	{ "sm_change", IBV_EVENT_SM_CHANGE },
	{ "client_reregister", IBV_EVENT_CLIENT_REREGISTER },
	{ "device_fatal", IBV_EVENT_DEVICE_FATAL },
};

/* What a line may say besides its action: once each. */
enum {
	SAYS_QP = 1 << 0,
	SAYS_PEER = 1 << 1,
	SAYS_DIR = 1 << 2,
	SAYS_NTH = 1 << 3,
	SAYS_EVERY = 1 << 4,
	SAYS_FIRST = 1 << 5,
	SAYS_P = 1 << 6,
	SAYS_AFTER = 1 << 7,
	SAYS_FOR = 1 << 8,
	SAYS_BY = 1 << 9,
	SAYS_ICRC = 1 << 10,
	SAYS_DEV = 1 << 11,
	SAYS_SOME = SAYS_NTH | SAYS_EVERY | SAYS_FIRST | SAYS_P,
	SAYS_WHICH = SAYS_SOME | SAYS_AFTER | SAYS_FOR,
	SAYS_WHERE = SAYS_QP | SAYS_PEER | SAYS_DEV,
};

static const uint32_t may_say[FAULT_ACTIONS] = {
	[FAULT_DROP] = SAYS_WHERE | SAYS_DIR | SAYS_WHICH,
	[FAULT_DELAY] = SAYS_WHERE | SAYS_WHICH,
	[FAULT_DUPLICATE] = SAYS_WHERE | SAYS_DIR | SAYS_WHICH,
	[FAULT_CORRUPT] = SAYS_WHERE | SAYS_WHICH | SAYS_ICRC,
	[FAULT_REORDER] = SAYS_WHERE | SAYS_WHICH | SAYS_BY,
	[FAULT_RNR] = SAYS_WHERE | SAYS_WHICH,
	[FAULT_KILL] = SAYS_WHERE | SAYS_DIR | SAYS_WHICH,
	[FAULT_FAIL] = SAYS_WHICH,
	[FAULT_RAISE] = SAYS_AFTER | SAYS_DEV,
};

struct script {
	struct faults *f;
	struct fault_rule *r; /* of this line */
	char text[LINE_MAX_BYTES];
	char *word[WORDS + 1]; /* NULL behind the last */
	size_t at;
	uint32_t said;
	unsigned line;
	char *why;
	size_t size;
};

__attribute__((format(printf, 2, 3))) static bool wrong(struct script *s,
							const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(s->why, s->size, fmt, ap);
	va_end(ap);
	return false;
}

static const char *next(struct script *s)
{
	return s->word[s->at] ? s->word[s->at++] : "";
}

static bool is_next(struct script *s, const char *word)
{
	if (!s->word[s->at] || strcmp(s->word[s->at], word))
		return false;
	s->at++;
	return true;
}

/* ---- values ------------------------------------------------------------ */

/* A number and what is behind it; false: there is none, or it is too large. */
static bool number(const char *text, uint64_t *n, const char **rest)
{
	char *end;

	if (*text < '0' || *text > '9')
		return false;
	errno = 0;
	*n = strtoull(text, &end, text[1] == 'x' ? 16 : 10);
	*rest = end;
	return !errno;
}

struct unit {
	const char *name;
	uint64_t worth;
};

static const struct unit times[] = {
	{ "ns", 1 }, { "us", 1000 }, { "ms", 1000000 }, { "s", 1000000000 }
};
static const struct unit sizes[] = {
	{ "B", 1 },           { "KB", 1000 },      { "MB", 1000000 },
	{ "GB", 1000000000 }, { "KiB", 1u << 10 }, { "MiB", 1u << 20 },
	{ "GiB", 1u << 30 },
};

/* At least 1, of one of these units. */
static bool quantity(const char *text, const struct unit *unit, size_t units,
		     uint64_t *out)
{
	const char *rest;
	uint64_t n;

	if (!number(text, &n, &rest) || !n)
		return false;
	for (size_t i = 0; i < units; i++)
		if (!strcmp(rest, unit[i].name) &&
		    n <= INT64_MAX / unit[i].worth) {
			*out = n * unit[i].worth;
			return true;
		}
	return false;
}

static bool time_of(const char *text, uint64_t *ns)
{
	return quantity(text, times, ARRAY_SIZE(times), ns);
}

static bool count_of(struct script *s, const char *key, uint64_t max,
		     uint64_t *n)
{
	const char *text = next(s), *rest;

	if (!number(text, n, &rest) || *rest || !*n || *n > max)
		return wrong(s,
			     "%s=%.40s: a number from 1 to %llu belongs here",
			     key, text, (unsigned long long)max);
	return true;
}

/* Whatever the locale's decimal point is. */
static bool chance(struct script *s)
{
	const char *text = next(s), *p = text;
	double n = 0, scale = 1;
	bool digits = false;

	for (; *p >= '0' && *p <= '9'; p++, digits = true)
		n = n * 10 + (*p - '0');
	if (*p == '.')
		for (p++; *p >= '0' && *p <= '9'; p++, digits = true) {
			scale /= 10;
			n += (*p - '0') * scale;
		}
	if (*p == '%') {
		n /= 100;
		p++;
	}
	if (!digits || *p || n > 1)
		return wrong(s,
			     "p=%.40s: a share from 0 to 1 belongs here, "
			     "such as 0.01 or 1%%",
			     text);
	s->r->by_chance = true;
	s->r->p = n;
	return true;
}

static bool range_add(struct fault_rule *r, struct fault_range range)
{
	size_t i;

	if (r->nnth == r->nth_size) {
		const size_t n = r->nth_size ? 2 * r->nth_size : 4;
		struct fault_range *more = realloc(r->nth, n * sizeof(*more));

		if (!more)
			return false;
		r->nth = more;
		r->nth_size = n;
	}
	/* They mostly come in order. */
	for (i = r->nnth++; i && r->nth[i - 1].from > range.from; i--)
		r->nth[i] = r->nth[i - 1];
	r->nth[i] = range;
	return true;
}

/* "3", "3-5", "3,7-9" */
static bool nth(struct script *s)
{
	const char *text = next(s), *p = text;
	struct fault_range range;

	for (;; p++) {
		if (!number(p, &range.from, &p) || !range.from)
			break;
		range.to = range.from;
		if (*p == '-' &&
		    (!number(p + 1, &range.to, &p) || range.to < range.from))
			break;
		if (!range_add(s->r, range))
			return wrong(s, "no memory");
		if (!*p)
			return true;
		if (*p != ',')
			break;
	}
	return wrong(s,
		     "nth=%.40s: numbers from 1 on belong here, such as 3 "
		     "or 3,7-9",
		     text);
}

static bool after(struct script *s)
{
	const char *text = next(s);
	const bool bytes = s->r->what.action != FAULT_RNR &&
			   s->r->what.action < FAULT_FAIL;

	if (time_of(text, &s->r->after_ns) ||
	    (bytes &&
	     quantity(text, sizes, ARRAY_SIZE(sizes), &s->r->after_bytes)))
		return true;
	return wrong(
		s, "after %.40s: a time%s belongs here", text,
		bytes ? " (5ms, 1s) or an amount of payload (64KiB, 10MB)" :
			", such as 5ms or 1s,");
}

static bool address(struct script *s, const char *text)
{
	union ibv_gid *gid = &s->r->what.peer;
	struct in_addr v4;

	s->r->what.peered = true;
	if (inet_pton(AF_INET, text, &v4) == 1) {
		*gid = gid_of_v4(&v4);
		return true;
	}
	if (inet_pton(AF_INET6, text, gid->raw) == 1)
		return true;
	return wrong(s, "%.60s: not an IP address", text);
}

static bool qp(struct script *s)
{
	const char *text = next(s), *rest;
	uint64_t n;

	if (!strcmp(text, "any"))
		return true;
	if (!number(text, &n, &rest) || *rest || !n || n > 0xffffff)
		return wrong(s,
			     "qp=%.40s: a queue pair's number in this "
			     "process, or any, belongs here",
			     text);
	s->r->what.qpn = (uint32_t)n;
	return true;
}

static bool dev(struct script *s)
{
	const char *text = next(s);
	char *to = s->r->what.dev;

	if (!*text || strlen(text) >= sizeof(s->r->what.dev))
		return wrong(s,
			     "dev=%.80s: the name of a device belongs here, "
			     "such as softhca1",
			     text);
	memcpy(to, text, strlen(text));
	return true;
}

static bool dir(struct script *s)
{
	uint32_t *dirs = &s->r->what.dirs;
	const char *text = next(s);

	*dirs = !strcmp(text, "out")  ? FAULT_OUT :
		!strcmp(text, "in")   ? FAULT_IN :
		!strcmp(text, "both") ? FAULT_OUT | FAULT_IN :
					0;
	return *dirs ||
	       wrong(s, "dir=%.40s: out, in or both belongs here", text);
}

static bool icrc(struct script *s)
{
	const char *text = next(s);

	s->r->what.right_icrc = !strcmp(text, "right");
	return s->r->what.right_icrc || !strcmp(text, "wrong") ||
	       wrong(s, "icrc=%.40s: right or wrong belongs here", text);
}

static bool by(struct script *s)
{
	uint64_t n = 0;

	if (!count_of(s, "by", 1000, &n))
		return false;
	s->r->what.behind = (uint32_t)n;
	return true;
}

static bool window(struct script *s)
{
	const char *text = next(s);

	return time_of(text, &s->r->for_ns) ||
	       wrong(s, "for %.40s: a time belongs here, such as 50ms", text);
}

/* ---- lines ------------------------------------------------------------- */

static const struct {
	const char *name;
	uint32_t says;
} keys[] = {
	{ "qp", SAYS_QP },   { "peer", SAYS_PEER },   { "dir", SAYS_DIR },
	{ "nth", SAYS_NTH }, { "every", SAYS_EVERY }, { "first", SAYS_FIRST },
	{ "p", SAYS_P },     { "after", SAYS_AFTER }, { "for", SAYS_FOR },
	{ "by", SAYS_BY },   { "icrc", SAYS_ICRC },   { "dev", SAYS_DEV },
};

static bool value(struct script *s, uint32_t says)
{
	switch (says) {
	case SAYS_QP:
		return qp(s);
	case SAYS_PEER:
		return address(s, next(s));
	case SAYS_DIR:
		return dir(s);
	case SAYS_NTH:
		return nth(s);
	case SAYS_EVERY:
		return count_of(s, "every", INT64_MAX, &s->r->every);
	case SAYS_FIRST:
		return count_of(s, "first", INT64_MAX, &s->r->first);
	case SAYS_P:
		return chance(s);
	case SAYS_AFTER:
		return after(s);
	case SAYS_FOR:
		return window(s);
	case SAYS_BY:
		return by(s);
	case SAYS_ICRC:
		return icrc(s);
	case SAYS_DEV:
		return dev(s);
	}
	return false;
}

static bool say(struct script *s, size_t key)
{
	const enum fault_action a = s->r->what.action;
	const uint32_t says = keys[key].says;

	if (!(may_say[a] & says))
		return wrong(s, "%s does not go with %s", keys[key].name,
			     action_names[a]);
	if (s->said & says)
		return wrong(s, "%s is there twice", keys[key].name);
	if (says & SAYS_SOME && s->said & SAYS_SOME)
		return wrong(s, "only one of nth, every, first and p can say "
				"which");
	s->said |= says;
	return value(s, says);
}

/* What is behind the action's own words. */
static bool rest(struct script *s)
{
	while (s->word[s->at]) {
		const char *word = next(s);
		size_t i;

		for (i = 0; i < ARRAY_SIZE(keys) && strcmp(keys[i].name, word);
		     i++)
			;
		if (i == ARRAY_SIZE(keys))
			return wrong(s,
				     "%.40s: not a word that belongs here; "
				     "see \"Faults on purpose\" in "
				     "softhca(1)",
				     word);
		if (!say(s, i))
			return false;
	}
	return true;
}

static bool names_class(const char *name, size_t len, uint32_t *bit)
{
	for (size_t i = 0; i < CLASSES; i++)
		if (strlen(class_names[i]) == len &&
		    !memcmp(class_names[i], name, len)) {
			*bit = 1u << i;
			return true;
		}
	return false;
}

/* "ack", "nak,rnr_nak"; "any" or nothing: any. */
static bool classes(struct script *s)
{
	const char *p = s->word[s->at], *key;
	uint32_t bit;
	size_t len;

	if (!p || is_next(s, "any"))
		return true;
	for (size_t i = 0; i < ARRAY_SIZE(keys); i++) {
		key = keys[i].name;
		if (!strcmp(p, key))
			return true;
	}
	if (s->r->what.action == FAULT_DELAY && *p >= '0' && *p <= '9')
		return true;
	s->at++;
	for (;; p += len + 1) {
		len = strcspn(p, ",");
		if (!names_class(p, len, &bit))
			return wrong(s,
				     "%.*s: no kind of packet; send, write, "
				     "read, read_request, read_response, "
				     "atomic, ack, nak, rnr_nak, cnp, mad "
				     "or any belongs here",
				     (int)(len < 40 ? len : 40), p);
		s->r->what.classes |= bit;
		if (!p[len])
			return true;
	}
}

static bool delay(struct script *s)
{
	const char *text = next(s);

	return time_of(text, &s->r->what.delay_ns) ||
	       wrong(s, "delay needs how long, such as delay read_response "
			"2ms");
}

static bool kill_qp(struct script *s)
{
	const char *word;

	if (!is_next(s, "qp"))
		return wrong(s, "kill needs an object: kill qp");
	word = s->word[s->at];
	if (!word || (strcmp(word, "any") && (*word < '0' || *word > '9')))
		return true;
	s->said |= SAYS_QP;
	return qp(s);
}

static bool fail(struct script *s)
{
	struct fault_what *w = &s->r->what;
	const char *text = next(s);
	size_t v = 0, end = s->at;
	const char *name;

	while (v < FAULT_NVERBS && strcmp(verb_names[v], text))
		v++;
	if (v == FAULT_NVERBS)
		return wrong(s,
			     "%.40s: not a call that can be made to fail; "
			     "for ibv_reg_mr: reg_mr",
			     text);
	w->verb = (uint32_t)v;
	/* The errno is the first or the last word. */
	for (size_t i = s->at; s->word[i] && !w->err; i++)
		for (int e = 1; e < 134 && !w->err; e++) {
			name = strerrorname_np(e);
			if (name && !strcmp(name, s->word[i])) {
				w->err = e;
				end = i;
			}
		}
	if (!w->err)
		return wrong(s,
			     "fail needs an error to fail with, such as "
			     "fail %s nth=2 ENOMEM",
			     text);
	for (; s->word[end]; end++)
		s->word[end] = s->word[end + 1];
	return true;
}

static bool raise_event(struct script *s)
{
	const char *text = next(s);

	for (size_t i = 0; i < ARRAY_SIZE(events); i++)
		if (!strcmp(events[i].name, text)) {
			s->r->what.event = events[i].event;
			return true;
		}
	if (!strcmp(text, "qp_fatal"))
		return wrong(s, "qp_fatal comes with kill qp");
	return wrong(s,
		     "%.40s: no event that can be raised; port_err, "
		     "port_active, gid_change, lid_change, pkey_change, "
		     "sm_change, client_reregister or device_fatal belongs "
		     "here",
		     text);
}

/* The words that only this action has, in front of the others. */
static bool own_words(struct script *s)
{
	switch ((enum fault_action)s->r->what.action) {
	case FAULT_DROP:
	case FAULT_DUPLICATE:
	case FAULT_CORRUPT:
		return classes(s);
	case FAULT_REORDER:
		s->r->what.behind = 1;
		return classes(s);
	case FAULT_DELAY:
		return classes(s) && delay(s);
	case FAULT_RNR:
		return true;
	case FAULT_KILL:
		return kill_qp(s);
	case FAULT_FAIL:
		return fail(s);
	case FAULT_RAISE:
		return raise_event(s);
	case FAULT_ACTIONS:
		break;
	}
	return false;
}

static bool seed(struct script *s)
{
	const char *text = next(s), *end;

	if (s->f->seeded)
		return wrong(s, "there is a seed already");
	if (!number(text, &s->f->seed, &end) || *end)
		return wrong(s, "seed %.40s: a number belongs here", text);
	s->f->seeded = true;
	return !s->word[s->at] ||
	       wrong(s, "%.40s: nothing belongs behind a seed", s->word[s->at]);
}

/* The action of a line, and what it selects unless it says more. */
static bool action(struct script *s)
{
	struct fault_what *w = &s->r->what;
	const char *word = next(s);
	size_t i;

	w->dirs = FAULT_OUT;
	/* Nothing goes to, and nothing is taken from an address. */
	if (!strcmp(word, "partition")) {
		w->action = FAULT_DROP;
		w->dirs = FAULT_OUT | FAULT_IN;
		s->said = SAYS_PEER | SAYS_DIR;
		return address(s, next(s));
	}
	for (i = 0; i < FAULT_ACTIONS && strcmp(action_names[i], word); i++)
		;
	if (i == FAULT_ACTIONS)
		return wrong(s,
			     "%.40s: no such fault; drop, delay, duplicate, "
			     "corrupt, reorder, rnr, kill qp, partition, "
			     "fail, raise or seed belongs here",
			     word);
	w->action = (uint32_t)i;
	return own_words(s);
}

/* An earlier rule that is the same but for nth takes this one's. */
static bool joins(struct script *s)
{
	struct fault_rule *r = s->r, *old;

	for (old = s->f->rule; old != r; old++) {
		if (memcmp(&old->what, &r->what, sizeof(r->what)) != 0 ||
		    old->after_ns != r->after_ns || old->for_ns != r->for_ns ||
		    old->after_bytes != r->after_bytes || !old->nth || !r->nth)
			continue;
		for (size_t i = 0; i < r->nnth; i++)
			if (!range_add(old, r->nth[i]))
				return wrong(s, "no memory");
		free(r->nth);
		memset(r, 0, sizeof(*r));
		return true;
	}
	s->f->nrules++;
	return true;
}

static bool rule(struct script *s)
{
	if (s->f->nrules == FAULTS_MAX_RULES)
		return wrong(s, "more than %d rules", FAULTS_MAX_RULES);
	s->r = &s->f->rule[s->f->nrules];
	s->r->line = s->line;
	s->said = 0;
	if (!action(s) || !rest(s))
		return false;
	/* Once is enough, unless the line says how often. */
	if (s->r->what.action == FAULT_KILL && !(s->said & SAYS_SOME))
		s->r->first = 1;
	return joins(s);
}

static bool line(struct script *s)
{
	size_t n = 0;
	char *save = NULL, *word = strtok_r(s->text, " \t\r=", &save);

	for (; word; word = strtok_r(NULL, " \t\r=", &save)) {
		if (n == WORDS)
			return wrong(s, "more than %d words", WORDS);
		s->word[n++] = word;
	}
	s->word[n] = NULL;
	s->at = 0;
	if (!n)
		return true;
	return is_next(s, "seed") ? seed(s) : rule(s);
}

/* Copies a line without its comment; false: it is no text. */
static bool take(struct script *s, const char *text, size_t len)
{
	const char *comment = memchr(text, '#', len);

	for (size_t i = 0; i < len; i++)
		if ((unsigned char)text[i] < ' ' && text[i] != '\t' &&
		    text[i] != '\r')
			return wrong(s, "byte 0x%02x: this is not text",
				     (unsigned char)text[i]);
	if (comment)
		len = (size_t)(comment - text);
	if (len >= sizeof(s->text))
		return wrong(s, "longer than %zu characters",
			     sizeof(s->text) - 1);
	memcpy(s->text, text, len);
	s->text[len] = '\0';
	return true;
}

/* A range that lies in another must not hide what follows it. */
static void ranges_join(struct fault_rule *r)
{
	size_t n = 0;

	for (size_t i = 0; i < r->nnth; i++)
		if (n && r->nth[i].from <= r->nth[n - 1].to + 1)
			r->nth[n - 1].to = r->nth[i].to > r->nth[n - 1].to ?
						   r->nth[i].to :
						   r->nth[n - 1].to;
		else
			r->nth[n++] = r->nth[i];
	r->nnth = n;
}

static bool lines(struct script *s, const char *text, size_t len)
{
	const char *end = text + len, *eol;

	for (; text < end; text = eol + 1) {
		eol = memchr(text, '\n', (size_t)(end - text));
		eol = eol ? eol : end;
		s->line++;
		if (!take(s, text, (size_t)(eol - text)) || !line(s))
			return false;
	}
	s->line = 0;
	if (!s->f->nrules && !s->f->seeded)
		return wrong(s, "it contains no fault");
	for (size_t i = 0; i < s->f->nrules; i++)
		ranges_join(&s->f->rule[i]);
	return true;
}

struct faults *faults_parse(const char *text, size_t len, unsigned *at,
			    char *why, size_t size)
{
	struct faults *f = calloc(1, sizeof(*f));
	struct script *s = calloc(1, sizeof(*s));
	bool good = false;

	*at = 0;
	if (f && s) {
		*s = (struct script){ .f = f, .why = why, .size = size };
		good = len > FAULTS_MAX_BYTES ? wrong(s, "longer than %u MiB",
						      FAULTS_MAX_BYTES >> 20) :
						lines(s, text, len);
		*at = s->line;
	} else {
		snprintf(why, size, "no memory");
	}
	free(s);
	if (good)
		return f;
	faults_free(f);
	return NULL;
}

void faults_free(struct faults *f)
{
	/* A line that was wrong has left something behind the last rule. */
	for (size_t i = 0; f && i < FAULTS_MAX_RULES; i++)
		free(f->rule[i].nth);
	free(f);
}

/* ---- a rule as text ---------------------------------------------------- */

const char *fault_verb_name(enum fault_verb v)
{
	return verb_names[v];
}

static const char *event_name(uint32_t event)
{
	size_t i = 0;

	while (i + 1 < ARRAY_SIZE(events) && (uint32_t)events[i].event != event)
		i++;
	return events[i].name;
}

struct out {
	char *to;
	size_t size;
	int len;
};

__attribute__((format(printf, 2, 3))) static void put(struct out *o,
						      const char *fmt, ...)
{
	const size_t at = (size_t)o->len < o->size ? (size_t)o->len : o->size;
	va_list ap;

	va_start(ap, fmt);
	o->len += vsnprintf(o->to + at, o->size - at, fmt, ap);
	va_end(ap);
}

/* In the largest unit that divides it. */
static void put_time(struct out *o, const char *before, uint64_t ns)
{
	size_t i = ARRAY_SIZE(times) - 1;

	while (ns % times[i].worth)
		i--;
	put(o, "%s%llu%s", before, (unsigned long long)(ns / times[i].worth),
	    times[i].name);
}

static void put_packets(struct out *o, const struct fault_what *w)
{
	char sep = ' ';

	if (!w->classes)
		put(o, " any");
	for (size_t i = 0; i < CLASSES; i++)
		if (w->classes & 1u << i) {
			put(o, "%c%s", sep, class_names[i]);
			sep = ',';
		}
}

static void put_where(struct out *o, const struct fault_what *w)
{
	struct gid_text peer;

	if (w->qpn)
		put(o, w->action == FAULT_KILL ? " 0x%06x" : " qp=0x%06x",
		    w->qpn);
	if (w->dev[0])
		put(o, " dev=%s", w->dev);
	if (w->peered)
		put(o, " peer=%s", gid_str(&w->peer, &peer));
	if (w->action != FAULT_RNR && w->dirs != FAULT_OUT)
		put(o, " dir=%s", w->dirs == FAULT_IN ? "in" : "both");
}

int fault_text(const struct fault_rule *r, char *to, size_t size)
{
	const struct fault_what *w = &r->what;
	struct out o = { to, size, 0 };

	put(&o, "%s", action_names[w->action]);
	switch ((enum fault_action)w->action) {
	case FAULT_FAIL:
		put(&o, " %s %s", verb_names[w->verb], strerrorname_np(w->err));
		return o.len;
	case FAULT_RAISE:
		put(&o, " %s", event_name(w->event));
		if (w->dev[0])
			put(&o, " dev=%s", w->dev);
		if (r->after_ns)
			put_time(&o, " after ", r->after_ns);
		return o.len;
	case FAULT_KILL:
		put(&o, " qp");
		break;
	case FAULT_RNR:
		break;
	default:
		put_packets(&o, w);
	}
	if (w->action == FAULT_DELAY)
		put_time(&o, " ", w->delay_ns);
	put_where(&o, w);
	if (w->action == FAULT_REORDER && w->behind > 1)
		put(&o, " by=%u", w->behind);
	if (w->right_icrc)
		put(&o, " icrc=right");
	return o.len;
}
