/*
 * gloo_check.cc - an allreduce of gloo by its ibverbs transport: RANK SIZE DIR
 *
 * Ranks meet by files in DIR. Each adds its numbers to those of the others; the
 * sums are checked.
 */
#include <gloo/allreduce_ring.h>
#include <gloo/barrier_all_to_one.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/file_store.h>
#include <gloo/transport/ibverbs/device.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <thread>
#include <vector>

int main(int argc, char **argv)
{
	if (argc != 4) {
		fprintf(stderr, "Usage: gloo_check RANK SIZE DIR\n");
		return 2;
	}
	const int rank = atoi(argv[1]), size = atoi(argv[2]);
	gloo::transport::ibverbs::attr attr;
	attr.name = "softhca0";
	attr.port = 1;
	attr.index = 0;
	auto device = gloo::transport::ibverbs::CreateDevice(attr);
	gloo::rendezvous::FileStore store(argv[3]);
	auto context = std::make_shared<gloo::rendezvous::Context>(rank, size);
	std::vector<std::unique_ptr<std::vector<float>>> memory;
	std::vector<std::unique_ptr<gloo::Algorithm>> algorithms;
	long bytes = 0;

	context->connectFullMesh(store, device);
	for (size_t n : {1, 1000, 1 << 20}) {
		memory.emplace_back(new std::vector<float>(n));
		std::vector<float> &v = *memory.back();

		algorithms.emplace_back(new gloo::AllreduceRing<float>(context, {v.data()}, (int)n));
		for (int round = 0; round < 10; round++) {
			for (size_t i = 0; i < n; i++)
				v[i] = (float)(i % 1000 + (size_t)(rank + round));
			algorithms.back()->run();
			for (size_t i = 0; i < n; i++) {
				float want = (float)size * (float)(i % 1000 + (size_t)round) +
					     (float)(size * (size - 1)) / 2;
				if (v[i] != want) {
					fprintf(stderr, "wrong: [%zu] is %f, not %f\n", i, v[i], want);
					return 1;
				}
			}
			bytes += (long)(n * sizeof(float));
		}
	}
	algorithms.emplace_back(new gloo::BarrierAllToOne(context));
	algorithms.back()->run();
	/* It aborts when a buffer is destroyed whose send has not completed, and
	 * has no way to wait for that. */
	std::this_thread::sleep_for(std::chrono::seconds(1));
	printf("%d ranks agree on %ld bytes\n", size, bytes);
	return 0;
}
