"""Read ``nvidia-smi topo -m`` into a fabric."""
