"""DAM and REM joined to one ranker (Zhan et al. 2022): LoRA and parallel adapters on a fitted backbone."""
