"""The machine: processors, measured rates, and the doctor."""
