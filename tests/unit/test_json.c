/*
 * test_json.c - the JSON that is written: its form, and bytes that are no text
 */
#include "unit.h"

#include "base/json.h"

#include <stdlib.h>
#include <string.h>

static void strings(void **state)
{
	static const struct {
		const char *in, *out;
	} cases[] = {
		{ "", "\"\"" },
		{ "a'b/c>&", "\"a'b/c>&\"" },
		{ "a\"b\\c<d\n\x7f",
		  "\"a\\u0022b\\u005cc\\u003cd\\u000a\\u007f\"" },
		{ "\xc3\xa9 \xe2\x82\xac \xf0\x9f\x98\x80",
		  "\"\xc3\xa9 \xe2\x82\xac \xf0\x9f\x98\x80\"" },
		/* Latin-1, cut short, overlong, a surrogate, beyond Unicode */
		{ "\xe9t\xe9", "\"\\u00e9t\\u00e9\"" },
		{ "\xe2\x82", "\"\\u00e2\\u0082\"" },
		{ "\xc0\xaf", "\"\\u00c0\\u00af\"" },
		{ "\xe0\x80\xaf", "\"\\u00e0\\u0080\\u00af\"" },
		{ "\xed\xa0\x80", "\"\\u00ed\\u00a0\\u0080\"" },
		{ "\xf4\x90\x80\x80", "\"\\u00f4\\u0090\\u0080\\u0080\"" },
	};

	(void)state;
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		char *text;
		size_t size;
		FILE *f = open_memstream(&text, &size);

		json_put_string(f, cases[i].in);
		fclose(f);
		assert_string_equal(text, cases[i].out);
		free(text);
	}
}

static void write_all(struct json *j)
{
	json_begin(j, NULL, '{');
	json_begin(j, "empty", '[');
	json_end(j, ']');
	json_begin(j, "list", '[');
	json_number(j, NULL, UINT64_MAX);
	json_begin(j, NULL, '{');
	json_end(j, '}');
	json_null(j, NULL);
	json_end(j, ']');
	json_hex(j, "hex", 6, 0x2a);
	json_string(j, "text", "x");
	json_end(j, '}');
}

static void form(void **state)
{
	static const char *const forms[] = {
		"{\"empty\":[],\"list\":[18446744073709551615,{},null],"
		"\"hex\":\"0x00002a\",\"text\":\"x\"}\n",
		"{\n  \"empty\":[],\n  \"list\":[\n    18446744073709551615,\n"
		"    {},\n    null\n  ],\n  \"hex\":\"0x00002a\",\n"
		"  \"text\":\"x\"\n}\n",
	};

	(void)state;
	for (int lines = 0; lines < 2; lines++) {
		char *text;
		size_t size;
		struct json j = { open_memstream(&text, &size),
				  .lines = lines };

		write_all(&j);
		fclose(j.f);
		assert_string_equal(text, forms[lines]);
		free(text);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(strings),
		cmocka_unit_test(form),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
