"""An experiment's journal, its record, and what people read from it: results, timelines, logs.

Nothing here asks a manager or changes an experiment; a record is all it needs.
"""

from downpour.record.result import Result
from downpour.record.result_parts import RoundResult
