from tests.train.conftest import offline, sums, tiny

__all__ = ["offline", "sums", "tiny"]
