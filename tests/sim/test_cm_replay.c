/*
 * test_cm_replay.c - every capture of a folder, see cm_replay.c
 */
#include "cm_replay.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static size_t compared, cut;

static void cm_says_what_was_captured(void **state)
{
	const char *path = *state;
	struct captures all = { 0 };
	size_t cuts;

	assert_int_equal(captures_load(&all, path), 0);
	compared += cm_replay(&all, strrchr(path, '/') + 1, &cuts);
	cut += cuts;
	captures_free(&all);
}

/* Each capture is a test of its own. */
int main(int argc, char **argv)
{
	const char *dir = argc > 1 ? argv[1] : "tests/data/pcap";
	const char *only = getenv("REPLAY");
	char **paths = captures_list(dir, only);
	struct CMUnitTest *tests;
	size_t ntests = 0, n = 0;
	int failed;

	if (!paths) {
		perror(dir);
		return 1;
	}
	while (paths[n])
		n++;
	tests = calloc(n + 1, sizeof(*tests));
	for (char **path = paths; *path; path++)
		tests[ntests++] = (struct CMUnitTest){
			.name = strrchr(*path, '/') + 1,
			.initial_state = *path,
			.test_func = cm_says_what_was_captured,
		};
	if (!ntests) {
		fprintf(stderr, "%s: no captures\n", dir);
		return 1;
	}
	failed =
		_cmocka_run_group_tests("cm_replay", tests, ntests, NULL, NULL);
	free(tests);
	captures_list_free(paths);
	print_message("%zu CM messages compared, %zu cut\n", compared, cut);
	return failed;
}
