"""For torchrun: all ranks reduce, and train one model on data of their own."""
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
rank, size = dist.get_rank(), dist.get_world_size()

numbers = torch.arange(2_000_000, dtype=torch.float64)
total = numbers * (rank + 1)
dist.all_reduce(total)
assert torch.equal(total, numbers * (size * (size + 1) // 2))

torch.manual_seed(1)
model = DistributedDataParallel(torch.nn.Linear(512, 512))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
data = torch.Generator().manual_seed(rank)
for _ in range(5):
    optimizer.zero_grad()
    model(torch.randn(8, 512, generator=data)).square().mean().backward()
    optimizer.step()
weights = [torch.zeros(512, 512) for _ in range(size)]
dist.all_gather(weights, model.module.weight.detach())
assert all(torch.equal(w, weights[0]) for w in weights)
print(f"rank {rank} of {size} agrees", flush=True)
dist.barrier()
dist.destroy_process_group()
