"""From parsed PTX to basic blocks of resolved instructions. Emits nothing."""
