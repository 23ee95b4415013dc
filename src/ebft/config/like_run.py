from ebft.runtime.launch import how_to_resume

__all__ = ["how_to_resume"]
