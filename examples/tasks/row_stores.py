"""Examples by index from Arrow, HDF5 and Lance: what a task's `examples` may return.

For zarr, write `zarr.open_group(path, mode="r")` in place of `h5py.File(path)`, and
`torch.as_tensor` in place of `torch.from_numpy`.
"""

import torch


class ArrowRows:
    def __init__(self, path):
        import pyarrow as pa

        self.table = pa.ipc.open_file(pa.memory_map(path)).read_all()

    def __len__(self):
        return len(self.table)

    def __getitem__(self, index):
        row = self.table.slice(index, 1).to_pylist()[0]
        return {"image": torch.tensor(row["image"]), "label": row["label"]}


class HdfRows:
    def __init__(self, path):
        import h5py

        self.file = h5py.File(path)

    def __len__(self):
        return len(self.file["x"])

    def __getitem__(self, index):
        return torch.from_numpy(self.file["x"][index]), int(self.file["y"][index])


class LanceRows:
    def __init__(self, path):
        import lance

        self.data = lance.dataset(path)

    def __len__(self):
        return self.data.count_rows()

    def __getitem__(self, index):
        return self.__getitems__([index])[0]

    def __getitems__(self, indices):
        """Read a whole batch at once."""
        rows = self.data.take(list(indices)).to_pylist()
        return [{"image": torch.tensor(row["image"]), "label": row["label"]} for row in rows]
