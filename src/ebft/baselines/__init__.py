"""What EBFT is compared with: SFT and RLVR on trainers of TRL, with the same data, validation and run folders."""
