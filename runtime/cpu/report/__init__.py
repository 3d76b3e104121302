"""What a finding says: its kernel and line, where an address lies, who waits where."""
