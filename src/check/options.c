/*
 * options.c - what SOFTHCA_CHECK says, and softhca run --check
 */
#include "options.h"

#include <stdlib.h>
#include <string.h>

static const char *parse_word(const char *word, size_t len,
			      struct check_options *out)
{
	char *end;
	long n;

	if ((len == 1 && *word == '1') || !len)
		return NULL;
	if (len > 5 && !strncmp(word, "exit=", 5)) {
		n = strtol(word + 5, &end, 10);
		if (word[5] < '0' || word[5] > '9' || end != word + len ||
		    n < 1 || n > 125)
			return "exit= needs a status from 1 to 125";
		out->exit = (int)n;
		return NULL;
	}
	if (len == 5 && !strncmp(word, "leaks", 5)) {
		out->leaks = true;
		return NULL;
	}
	if (len >= 5 && !strncmp(word, "json=", 5)) {
		if (len == 5)
			return "json= needs the name of a file";
		if (len - 5 >= sizeof(out->json))
			return "the name of the file is too long";
		memcpy(out->json, word + 5, len - 5);
		out->json[len - 5] = '\0';
		return NULL;
	}
	return "exit=N, json=FILE or leaks expected";
}

const char *check_options(const char *text, struct check_options *out)
{
	const char *why;
	size_t len;

	*out = (struct check_options){ 0 };
	if (!strcmp(text, "0"))
		return NULL;
	for (;; text += len + 1) {
		len = strcspn(text, ",");
		why = parse_word(text, len, out);
		if (why)
			return why;
		if (!text[len])
			break;
	}
	out->on = true;
	return NULL;
}
