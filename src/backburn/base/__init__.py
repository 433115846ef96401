"""The bottom floor: errors, dtypes, trees and scoped settings. Imports nothing else of backburn."""
