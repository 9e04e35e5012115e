-- What operators may tune of the consistency check.

insert into gradient.setting (name, value, default_value, unit, description)
select name, value, value, unit, description from (values
  ('check.budget', '60', 'seconds', 'Time after which a consistency check stops where it is, when its caller names none.'),
  ('check.chunk', '2000', 'rows', 'Rows that a consistency check looks at in one transaction.'),
  ('check.pace', '100', 'percent', 'Pause of a consistency check after each chunk, of the time the chunk took.')
) as s (name, value, unit, description);
