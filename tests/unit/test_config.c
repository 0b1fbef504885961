/*
 * test_config.c - the environment, good and bad
 */
#include "unit.h"

#include "hostns.h"

#include "os/config.h"

#include <locale.h>
#include <unistd.h>

/* Reads the configuration in a child that has this environment. */
struct with {
	const char *name, *value;
	bool (*right)(const struct config *c);
	bool complains;
};

static int child(void *arg)
{
	const struct with *w = arg;
	char said[4096] = "";
	int fd[2];
	ssize_t n;
	bool right;

	if (pipe(fd) || dup2(fd[1], STDERR_FILENO) < 0 ||
	    setenv(w->name, w->value, 1))
		return 100;
	right = w->right(config_get()) && config_get() == config_get();
	setenv(w->name, "changed", 1);
	right = right && w->right(config_get());
	fcntl(fd[0], F_SETFL, O_NONBLOCK);
	n = read(fd[0], said, sizeof(said) - 1);
	if (n > 0 && (!strstr(said, w->name) || !strstr(said, w->value) ||
		      strchr(said, '\n') != said + n - 1))
		return 101; /* once, in one line, with what is wrong */
	return right && (n > 0) == w->complains ? 0 : 1;
}

static bool is_default(const struct config *c)
{
	return !c->wire && c->same_host == SAME_HOST_AUTO && !c->explain &&
	       c->loss <= 0 && !c->seed && !c->part_id && !c->addr &&
	       !c->devices && !c->pcap && !c->rundir;
}

static bool is_wire(const struct config *c)
{
	return c->wire;
}

static bool is_copy(const struct config *c)
{
	return c->same_host == SAME_HOST_COPY;
}

static bool is_udp(const struct config *c)
{
	return c->same_host == SAME_HOST_UDP;
}

static bool is_loss(const struct config *c)
{
	return c->loss > 0.0249999 && c->loss < 0.0250001;
}

static bool is_all_lost(const struct config *c)
{
	return c->loss >= 1 && c->loss <= 1;
}

static bool is_seed(const struct config *c)
{
	return c->seed == 0xffffffffffffffff;
}

static bool is_part(const struct config *c)
{
	return c->part_id == 4129;
}

static bool is_addr(const struct config *c)
{
	return c->addr && !strcmp(c->addr, "10.0.0.1");
}

static bool is_explained(const struct config *c)
{
	return c->explain == EXPLAIN_ON;
}

static bool is_explained_in_full(const struct config *c)
{
	return c->explain == EXPLAIN_FULL;
}

static void values(void **state)
{
	static const struct with cases[] = {
		{ "SOFTHCA_OTHER", "1", is_default, false },
		{ "SOFTHCA_WIRE", "1", is_wire, false },
		{ "SOFTHCA_WIRE", "Yes", is_wire, false },
		{ "SOFTHCA_WIRE", "0", is_default, false },
		{ "SOFTHCA_WIRE", "", is_default, false },
		{ "SOFTHCA_WIRE", "2", is_default, true },
		{ "SOFTHCA_SAME_HOST", "auto", is_default, false },
		{ "SOFTHCA_SAME_HOST", "copy", is_copy, false },
		{ "SOFTHCA_SAME_HOST", "UDP", is_udp, false },
		{ "SOFTHCA_SAME_HOST", "", is_default, false },
		{ "SOFTHCA_SAME_HOST", "shm", is_default, true },
		{ "SOFTHCA_LOSS", "2.5", is_loss, false },
		{ "SOFTHCA_LOSS", "2.5%", is_loss, false },
		{ "SOFTHCA_LOSS", "02.50", is_loss, false },
		{ "SOFTHCA_LOSS", "100", is_all_lost, false },
		{ "SOFTHCA_LOSS", "0", is_default, false },
		{ "SOFTHCA_LOSS", "100.1", is_default, true },
		{ "SOFTHCA_LOSS", "-1", is_default, true },
		{ "SOFTHCA_LOSS", "1e2", is_default, true },
		{ "SOFTHCA_LOSS", ".", is_default, true },
		{ "SOFTHCA_LOSS", "nan", is_default, true },
		{ "SOFTHCA_SEED", "0xffffffffffffffff", is_seed, false },
		{ "SOFTHCA_SEED", "0x1ffffffffffffffff", is_default, true },
		{ "SOFTHCA_SEED", "-1", is_default, true },
		{ "SOFTHCA_SEED", " -1", is_default, true },
		{ "SOFTHCA_PART_ID", "4129", is_part, false },
		{ "SOFTHCA_PART_ID", "4294967296", is_default, true },
		{ "SOFTHCA_PART_ID", "12x", is_default, true },
		{ "SOFTHCA_ADDR", "10.0.0.1", is_addr, false },
		{ "SOFTHCA_EXPLAIN", "off", is_default, false },
		{ "SOFTHCA_EXPLAIN", "1", is_explained, false },
		{ "SOFTHCA_EXPLAIN", "full", is_explained_in_full, false },
		{ "SOFTHCA_EXPLAIN", "fuller", is_default, true },
		{ "SOFTHCA_CHECK_JSON", "found", is_default, true },
	};

	(void)state;
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		int rc = in_child(child, (void *)&cases[i]);

		if (rc)
			print_message("%s=%s\n", cases[i].name, cases[i].value);
		assert_int_equal(rc, 0);
	}
}

static void clock_advances(void **state)
{
	uint64_t a = clock_ns(), b = a;

	(void)state;
	for (int i = 0; i < 1000 && b == a; i++) {
		usleep(1000);
		b = clock_ns();
	}
	assert_true(b > a);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(values),
		cmocka_unit_test(clock_advances),
	};

	clearenv();
	return cmocka_run_group_tests(tests, NULL, NULL);
}
