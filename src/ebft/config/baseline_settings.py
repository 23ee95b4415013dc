from ebft.config.baselines import RLVRSettings, SFTSettings

__all__ = ["RLVRSettings", "SFTSettings"]
