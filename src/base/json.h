/*
 * json.h - writes JSON piece by piece
 *
 * Nothing is built in memory, and nothing here reads JSON. In an array, and for
 * the outermost value, key is NULL.
 */
#ifndef SOFTHCA_BASE_JSON_H
#define SOFTHCA_BASE_JSON_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

struct json {
	FILE *f;
	bool lines; /* each member on its own, indented */
	bool more; /* a comma comes before the next member */
	unsigned depth;
};

/* bracket: '{' or '['; json_end() gets the other one. */
void json_begin(struct json *j, const char *key, char bracket);
void json_end(struct json *j, char bracket);
void json_string(struct json *j, const char *key, const char *s);
void json_hex(struct json *j, const char *key, int digits, uint64_t n);
void json_number(struct json *j, const char *key, uint64_t n);
void json_null(struct json *j, const char *key);

/* A string alone, also good inside a <script> of a page. What is not UTF-8
 * becomes what it is in Latin-1. */
void json_put_string(FILE *f, const char *s);

#endif
