/*
 * fabric_text_fuzz.c - any bytes as a fabric in ibnetdiscover's format, and lines
 * that mostly are such: what is accepted can be asked, and what is refused is
 * refused with a reason
 */
#include "fuzz.h"

#include "input.h"

#include "base/bytes.h"
#include "fabric/fabric.h"

/* From the first node: NodeInfo along a directed route that the input says. */
static void ask(struct fabric *f, struct input *in)
{
	uint8_t mad[256] = { 1, 0x81, 1, 1 };
	struct fabric_port p;
	void *answer;

	if (fabric_port_named(f, NULL, 0, &p))
		return;
	for (unsigned i = 0; i < 32 && in->left; i++) {
		put_be16(mad + 16, 0x10 + byte(in) % 12u);
		mad[23] = byte(in);
		mad[1] = byte(in) & 1 ? 0x81 : 1;
		mad[7] = byte(in) % 6;
		memset(mad + 32, 0xff, 4);
		for (unsigned k = 1; k <= mad[7]; k++)
			mad[128 + k] = byte(in) % 5;
		if (fabric_request(f, NULL, p.port_guid, byte(in) % 16u, 0, mad,
				   256, &answer, NULL) > 0)
			free(answer);
	}
}

static void read_one(const char *text, size_t len, struct input *in)
{
	struct fabric *f = fabric_new();
	char why[200] = "";

	FUZZ_CHECK(f);
	if (fabric_read(f, "n", text, len, why, sizeof(why)))
		FUZZ_CHECK(why[0] == 'n' && why[1] == ':');
	else
		ask(f, in);
	fabric_free(f);
}

/* Lines from the input: few names and ports, so that links often fit. */
static size_t lines(struct input *in, char *text, size_t room)
{
	static const char *const remarks[] = {
		"",
		" # \"d\" base port 0 lid 3 lmc 0",
		" # lid 4 lmc 1 \"d\"",
		" # 4xEDR",
		" # \"d\" lid 9 1xFDR10",
		" # \"",
		" junk",
		" # 4xA"
	};
	size_t n = 0;

	for (unsigned i = 0; i < 24 && in->left && n + 128 < room; i++) {
		const unsigned kind = byte(in), a = byte(in), b = byte(in);
		const char *remark = kind & 0x40 ? remarks[byte(in) % 8] : "";

		if (kind % 4 == 0)
			n += (size_t)snprintf(text + n, room - n,
					      "%s %u \"%c\"%s\n",
					      kind & 4 ? "Ca" : "Switch", a % 6,
					      'a' + (int)(b % 5), remark);
		else if (kind % 4 == 3)
			n += (size_t)snprintf(text + n, room - n, "%s=%x(%x)\n",
					      a & 1 ? "caguid" : "sysimgguid",
					      a, b);
		else
			n += (size_t)snprintf(
				text + n, room - n, "[%u]%s \"%c\"[%u]%s\n",
				a % 6, kind & 8 ? "(7)" : "",
				'a' + (int)(b % 5), b % 4 + 1u, remark);
	}
	return n;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static char text[4096];
	struct input in = { data, size }, rest = { data, size };

	read_one((const char *)data, size, &rest);
	read_one(text, lines(&in, text, sizeof(text)), &in);
	return 0;
}
