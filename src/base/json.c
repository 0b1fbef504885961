/*
 * json.c - writes JSON piece by piece
 */
#include "json.h"

#include <inttypes.h>

/* Bytes of the character of UTF-8 at s, or 0: it is none. */
static int utf8(const unsigned char *s)
{
	/* Without overlong forms and surrogates: what the second byte may be. */
	const unsigned char low = s[0] == 0xe0 ? 0xa0 :
				  s[0] == 0xf0 ? 0x90 :
						 0x80;
	const unsigned char high = s[0] == 0xed ? 0x9f :
				   s[0] == 0xf4 ? 0x8f :
						  0xbf;
	const int n = s[0] < 0xc2 ? 0 :
		      s[0] < 0xe0 ? 2 :
		      s[0] < 0xf0 ? 3 :
		      s[0] < 0xf5 ? 4 :
				    0;

	if (!n || s[1] < low || s[1] > high)
		return 0;
	for (int i = 2; i < n; i++)
		if ((s[i] & 0xc0) != 0x80)
			return 0;
	return n;
}

void json_put_string(FILE *f, const char *text)
{
	const unsigned char *s = (const unsigned char *)text;
	int n;

	putc('"', f);
	for (; *s; s += n) {
		n = *s < 0x80 ? 1 : utf8(s);
		if (!n || *s < ' ' || *s == '"' || *s == '\\' || *s == '<' ||
		    *s == 0x7f) {
			fprintf(f, "\\u%04x", *s);
			n = 1;
		} else {
			fwrite(s, 1, (size_t)n, f);
		}
	}
	putc('"', f);
}

static void new_line(const struct json *j)
{
	if (j->lines)
		fprintf(j->f, "\n%*s", (int)(2 * j->depth), "");
}

static void member(struct json *j, const char *key)
{
	if (j->more)
		putc(',', j->f);
	if (j->depth)
		new_line(j);
	if (key) {
		json_put_string(j->f, key);
		putc(':', j->f);
	}
	j->more = true;
}

void json_begin(struct json *j, const char *key, char bracket)
{
	member(j, key);
	putc(bracket, j->f);
	j->depth++;
	j->more = false;
}

void json_end(struct json *j, char bracket)
{
	j->depth--;
	if (j->more)
		new_line(j);
	putc(bracket, j->f);
	if (!j->depth)
		putc('\n', j->f);
	j->more = true;
}

void json_string(struct json *j, const char *key, const char *s)
{
	member(j, key);
	json_put_string(j->f, s);
}

void json_hex(struct json *j, const char *key, int digits, uint64_t n)
{
	member(j, key);
	fprintf(j->f, "\"0x%0*" PRIx64 "\"", digits, n);
}

void json_number(struct json *j, const char *key, uint64_t n)
{
	member(j, key);
	fprintf(j->f, "%" PRIu64, n);
}

void json_null(struct json *j, const char *key)
{
	member(j, key);
	fputs("null", j->f);
}
