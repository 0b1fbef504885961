/*
 * names.c - the names of states, types and attributes
 */
#include "names.h"

#include "base/bytes.h"

#include <stdio.h>

const char *qp_state_str(unsigned state)
{
	static const char *const names[] = {
		[IBV_QPS_RESET] = "RESET", [IBV_QPS_INIT] = "INIT",
		[IBV_QPS_RTR] = "RTR",     [IBV_QPS_RTS] = "RTS",
		[IBV_QPS_SQD] = "SQD",     [IBV_QPS_SQE] = "SQE",
		[IBV_QPS_ERR] = "ERR",
	};

	return state < ARRAY_SIZE(names) ? names[state] : "?";
}

const char *qp_type_str(unsigned type)
{
	switch (type) {
	case IBV_QPT_RC:
		return "RC";
	case IBV_QPT_UC:
		return "UC";
	case IBV_QPT_UD:
		return "UD";
	case IBV_QPT_XRC_SEND:
		return "XRC_SEND";
	case IBV_QPT_XRC_RECV:
		return "XRC_RECV";
	default:
		return "?";
	}
}

const char *qp_mask_str(int mask, struct qp_names *names)
{
#define BIT(name)                                                              \
	{                                                                      \
		IBV_QP_##name, "IBV_QP_" #name                                 \
	}
	static const struct {
		int bit;
		const char *name;
	} bits[] = {
		BIT(STATE),
		BIT(CUR_STATE),
		BIT(EN_SQD_ASYNC_NOTIFY),
		BIT(ACCESS_FLAGS),
		BIT(PKEY_INDEX),
		BIT(PORT),
		BIT(QKEY),
		BIT(AV),
		BIT(PATH_MTU),
		BIT(TIMEOUT),
		BIT(RETRY_CNT),
		BIT(RNR_RETRY),
		BIT(RQ_PSN),
		BIT(MAX_QP_RD_ATOMIC),
		BIT(ALT_PATH),
		BIT(MIN_RNR_TIMER),
		BIT(SQ_PSN),
		BIT(MAX_DEST_RD_ATOMIC),
		BIT(PATH_MIG_STATE),
		BIT(CAP),
		BIT(DEST_QPN),
		BIT(RATE_LIMIT),
	};
#undef BIT
	size_t n = 0, size = sizeof(names->text);

	snprintf(names->text, size, "none");
	for (size_t i = 0; i < ARRAY_SIZE(bits) && n < size; i++) {
		if (!(mask & bits[i].bit))
			continue;
		n += (size_t)snprintf(names->text + n, size - n, "%s%s",
				      n ? " | " : "", bits[i].name);
		mask &= ~bits[i].bit;
	}
	if (mask && n < size)
		snprintf(names->text + n, size - n, "%s0x%x", n ? " | " : "",
			 (unsigned)mask);
	return names->text;
}
